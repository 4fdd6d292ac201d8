"""A conformance kit for any loader of a dataset: torch's DataLoader, a stream, or a loader of another library.

    from understudy_conformance import check_loader

results         `LoaderCheck`, `LoaderReport`, and the names of all checks
batch_values    batches as arrays, and the samples that they hold
make_loader     the caller's factory, state hooks and loaders of several epochs
foreign_calls   calls of the loader's code that always end
reading         batches of all ranks in step, up to a limit
content         rows, windows, padding and images against a slow reference
sample_order    coverage, equality and shuffle quality of sequences of samples
resume          resume from a state in the middle of an epoch
resume_ranks    resume of several ranks, and with another number of them
workers         work of each worker process
run             `check_loader`: all checks over one loader
"""

from understudy_conformance.make_loader import Consumed
from understudy_conformance.results import CHECKS, LoaderCheck, LoaderReport
from understudy_conformance.run import check_loader

__all__ = ["CHECKS", "Consumed", "LoaderCheck", "LoaderReport", "check_loader"]
