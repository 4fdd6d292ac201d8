"""The order: the sample at each position, as one pure function, and the random draws of a position.
numpy only.

order              `Order`: positions to samples and back, by the formula or from a file
spec               the saved form of an order, an order in words, and differences between two of
                   them
make_spec          from the arguments of `Order.from_datasets` to a spec; other weights from a
                   position on
cost               CPU time and mixing of an order, from its numbers
defaults           clip length and lanes, chosen and explained
frame_numbering    the selected frames of a source as numbers 0..N-1
lanes              clip lanes: the order of one source in closed form
shares             several sources in one order, in whole slots
shared_slots       slots that several sources share, for exact weights
rank_positions     positions of each rank
sample_random      random numbers of a sample
random             keyed permutations and generators
design_effect      correlation model and the design effect under it
"""

from understudy_data.order.make_spec import Frames
from understudy_data.order.order import ClipOrder, FileOrder, Order
from understudy_data.order.rank_positions import batch_positions, rank_positions, rank_slice
from understudy_data.order.sample_random import (
    KeyedDraws,
    SampleRng,
    sample_normal,
    sample_rng,
    sample_uniform,
    sample_words,
)
from understudy_data.order.spec import Difference, Spec, compare

__all__ = [
    "ClipOrder",
    "Difference",
    "FileOrder",
    "Frames",
    "KeyedDraws",
    "Order",
    "SampleRng",
    "Spec",
    "batch_positions",
    "compare",
    "rank_positions",
    "rank_slice",
    "sample_normal",
    "sample_rng",
    "sample_uniform",
    "sample_words",
]
