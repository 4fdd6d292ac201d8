"""The order: which sample is position p, as one pure function, and the draws that belong to a position. numpy only."""

from understudy.order.draws import SampleRng, sample_normal, sample_rng, sample_uniform, sample_words
from understudy.order.order import Order
from understudy.order.placement import batch_positions, rank_positions, rank_slice
from understudy.order.plan import Frames
from understudy.order.spec import Difference, Spec, compare

__all__ = [
    "Difference",
    "Frames",
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
