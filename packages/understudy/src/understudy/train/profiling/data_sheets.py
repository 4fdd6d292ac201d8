"""Arithmetic of graphics cards by their names, from their makers' data sheets. Needs no torch."""

import re

TERAFLOPS = {
    "B200": {"bfloat16": 2250.0},
    "H200": {"bfloat16": 989.5, "tf32": 494.7, "float32": 66.9},
    "H100 PCIe": {"bfloat16": 756.5, "tf32": 378.0, "float32": 51.2},
    "H100 NVL": {"bfloat16": 835.5, "tf32": 417.5, "float32": 60.0},
    "H100": {"bfloat16": 989.5, "tf32": 494.7, "float32": 66.9},
    "A100": {"bfloat16": 312.0, "tf32": 156.0, "float32": 19.5},
    "L40S": {"bfloat16": 362.0, "tf32": 183.0, "float32": 91.6},
    "L4": {"bfloat16": 121.0, "tf32": 60.0, "float32": 30.3},
    "A10": {"bfloat16": 125.0, "tf32": 62.5, "float32": 31.2},
    "RTX 4090": {"bfloat16": 165.2, "tf32": 82.6, "float32": 82.6},
}
"""Dense (no sparsity) teraflops per second from NVIDIA's data sheets, by arithmetic: "bfloat16",
"tf32" (float32 products on tensor cores), "float32". The first name that a device's name contains
is its own.
"""


def peak_flops(device: str, arithmetic: str) -> float | None:
    """Return the peak operations per second of a device; None if unknown.

    Args:
        device: its name (`torch.cuda.get_device_name`), or a name of `TERAFLOPS`.
        arithmetic: a key of `TERAFLOPS`.
    """
    for name, speeds in TERAFLOPS.items():
        if re.search(rf"\b{name}\b", device):
            return speeds[arithmetic] * 1e12 if arithmetic in speeds else None
    return None
