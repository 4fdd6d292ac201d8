"""Peak operations per second of devices, by their names. Imports nothing, for measurements without datasets."""

import re

# Dense (no sparsity) teraflops per second from NVIDIA's data sheets; the first matching name wins.
PEAKS = (
    (r"\bB200\b", {"bfloat16": 2250.0}),
    (r"\bH200\b", {"bfloat16": 989.5, "tf32": 494.7, "float32": 66.9}),
    (r"\bH100 PCIe\b", {"bfloat16": 756.5, "tf32": 378.0, "float32": 51.2}),
    (r"\bH100 NVL\b", {"bfloat16": 835.5, "tf32": 417.5, "float32": 60.0}),
    (r"\bH100\b", {"bfloat16": 989.5, "tf32": 494.7, "float32": 66.9}),
    (r"\bA100\b", {"bfloat16": 312.0, "tf32": 156.0, "float32": 19.5}),
    (r"\bL40S\b", {"bfloat16": 362.0, "tf32": 183.0, "float32": 91.6}),
    (r"\bL4\b", {"bfloat16": 121.0, "tf32": 60.0, "float32": 30.3}),
    (r"\bA10\b", {"bfloat16": 125.0, "tf32": 62.5, "float32": 31.2}),
    (r"\bRTX 4090\b", {"bfloat16": 165.2, "tf32": 82.6, "float32": 82.6}),
)


def peak_flops(device: str, arithmetic: str) -> float | None:
    """Return the peak operations per second of a device; None if unknown.

    Args:
        device: its name (`torch.cuda.get_device_name`).
        arithmetic: "bfloat16", "tf32" (float32 products on tensor cores) or "float32".
    """
    for pattern, speeds in PEAKS:
        if re.search(pattern, device):
            return speeds[arithmetic] * 1e12 if arithmetic in speeds else None
    return None
