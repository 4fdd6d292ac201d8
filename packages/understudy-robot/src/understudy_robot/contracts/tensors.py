"""Weights of a folder without torch: names, shapes, and their digest."""

import hashlib
from pathlib import Path

from safetensors import SafetensorError, safe_open

from understudy_client import Mismatch
from understudy_data import Checksums

Shapes = dict[str, tuple[int, ...]]
_RESTORE = "download or export the policy again"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the weights, without those of processors and adapters."""
    return sorted(path for path in folder.glob("*.safetensors") if path.name.startswith("model"))


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of the weights, of several files that of their digests; "" without a
    file.
    """
    digests = [Checksums.sha256_of(path) for path in weight_files(folder)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""


def tensor_shapes(folder: Path) -> Shapes:
    """Read the shapes of all tensors by name, from the headers of the files.

    Raises:
        ValueError: a file is not whole.
    """
    shapes: Shapes = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, "numpy") as file:
                names = file.keys()
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path.name}: {error}") from error
    return shapes


def unfit(config: str, weights: str) -> Mismatch:
    """Return the fault of weights that are not those of the config."""
    return Mismatch("weights", "", config, weights, _RESTORE)
