"""The progress bar, for modules that show one. Needs the extra `train`."""

from understudy.extras import required

with required():
    from tqdm import tqdm

__all__ = ["tqdm"]
