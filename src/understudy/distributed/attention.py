"""The setting `attention`: the kernel that torch picks, or the operations of attention one by one."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def attention_kernels(setting: str) -> Iterator[None]:
    """Compute each `scaled_dot_product_attention` of this block with the kernels that a setting names.

    It holds for a backward pass inside the block, too, which may recompute attention.

    Args:
        setting: "sdpa": the fastest kernel that fits. "eager": two matrix products and a softmax.
    """
    if setting == "sdpa":
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield
