"""The setting `attention`: the kernel that torch picks, or the operations of attention one by one."""

from contextlib import AbstractContextManager, nullcontext

from torch.nn.attention import SDPBackend, sdpa_kernel


def attention_kernels(setting: str) -> AbstractContextManager[None]:
    """Compute each `scaled_dot_product_attention` of this block with the kernels that a setting names.

    It holds for a backward pass inside the block, too, which may recompute attention.

    Args:
        setting: "sdpa": the fastest kernel that fits. "eager": two matrix products and a softmax.
    """
    return nullcontext() if setting == "sdpa" else sdpa_kernel(SDPBackend.MATH)
