"""Devices of torch: one by its name, and NVIDIA cards of this machine that this torch cannot use.

A CPU build of torch beside a card, a driver that torch cannot use, and a card without kernels in
this build would otherwise be silence, or an error of torch at the first operation.
"""

import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from understudy_base import ConfigError

DRIVER = Path("/proc/driver/nvidia/gpus")
"""Folder of the driver with a folder for each card; a Linux without the driver has none, and WSL
neither.
"""
SMI_SECONDS = 3.0
"""Longest wait for `nvidia-smi`, which a broken driver blocks."""
BUILDS = "https://pytorch.org/get-started/locally"
"""Address of the commands that install a build of torch for a card."""


def torch_device(name: str) -> torch.device:
    """Return the device of this name (`cpu`, `cuda`, `cuda:1`), which can compute.

    Raises:
        ConfigError: torch has no such device here, or no kernels for this card.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"device: {name!r} is not the name of a device: give cpu, cuda or cuda:1"
        ) from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device: {name}: {missing_cuda()}; or use --device cpu")
        count = torch.cuda.device_count()
        index = device.index or 0
        if index >= count:
            raise ConfigError(
                f"device: {name}: this machine has the devices cuda:0 to cuda:{count - 1} for torch"
            )
        if lack := missing_kernels(index):
            raise ConfigError(f"device: {name}: {lack}; or use --device cpu")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"device: {name!r} cannot be used here: {reason}") from error
    return device


def describe_unused_cards() -> str:
    """Return one line about cards that torch cannot use, with the remedy; "" if there are none or
    torch uses them.
    """
    if torch.cuda.is_available():
        lacking = [missing_kernels(index) for index in range(torch.cuda.device_count())]
        reason = lacking[0] if lacking and all(lacking) else ""
    else:
        reason = missing_cuda() if find_cards() else ""
    return (
        f"the CPU computes, and not a GPU: {reason}. `--device cpu` chooses the CPU without this "
        "line" * bool(reason)
    )


def missing_cuda() -> str:
    """Return the reason why torch sees no GPU, with the cards of this machine and the remedy."""
    cards = find_cards()
    named = (
        f"this machine has {len(cards)} GPU{'s' * (len(cards) > 1)} ({cards[0]})" if cards else ""
    )
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        build = f"torch {torch.__version__} is a build for CPUs alone"
        remedy = f"install a build for the GPU ({BUILDS})"
        return (
            f"{named}, and {build}: {remedy}"
            if cards
            else f"{build}, and no GPU was found: {remedy}"
        )
    build = f"torch {torch.__version__} for CUDA {torch.version.cuda}"
    reason = _refusal()
    remedy = f"update the driver, or install a build of torch for its version of CUDA ({BUILDS})"
    return (
        f"{named or 'no GPU was found'}, and {build} cannot use {'it' if cards else 'one'} "
        f"({reason}): {remedy}"
    )


def missing_kernels(index: int) -> str:
    """Return one line if this torch has no kernels for the card number `index`, with the remedy; ""
    if it has some.
    """
    built = torch.cuda.get_arch_list()
    capability = torch.cuda.get_device_capability(index)
    if not built or has_kernels(built, capability):
        return ""
    version = ".".join(map(str, capability))
    return (
        f"{torch.cuda.get_device_name(index)} has the compute capability {version}, and torch "
        f"{torch.__version__} has kernels for {', '.join(built)} alone: install a build of torch "
        f"for this card ({BUILDS})"
    )


def has_kernels(built: Sequence[str], capability: tuple[int, int]) -> bool:
    """Return whether code built for these architectures (`torch.cuda.get_arch_list`) runs on a
    card.

    Machine code (`sm_86`) runs on cards of the same major version from its minor one on, that with
    an `a` on exactly one, and intermediate code (`compute_90`) on all later ones. Names of another
    form are not judged.
    """
    for name in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)
        if match is None:
            return True
        version = (int(match[2]), int(match[3]))
        same_major = version[0] == capability[0]
        if match[4] == "a":
            fits = version == capability
        elif match[4] == "f" or match[1] == "sm":
            fits = same_major and version <= capability
        else:
            fits = version <= capability
        if fits:
            return True
    return False


def find_cards() -> list[str]:
    """Return the names of the NVIDIA cards of this machine; none if the environment hides them from
    this process.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and (not hidden.strip() or hidden.strip().startswith("-1")):
        return []
    if os.environ.get("NVIDIA_VISIBLE_DEVICES") in ("none", "void"):
        return []
    try:
        folders = sorted(DRIVER.iterdir())
    except OSError:
        return _cards_of_smi()
    return [_model(folder) for folder in folders]


def _model(folder: Path) -> str:
    try:
        text = (folder / "information").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else "NVIDIA GPU"


def _cards_of_smi() -> list[str]:
    """Return the cards that `nvidia-smi -L` lists; none if it is missing, fails or does not answer
    in time.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        process = subprocess.Popen(
            [program, "-L"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return []
    try:
        output = process.communicate(timeout=SMI_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        # a call that blocks in the driver cannot be ended
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        if process.stdout is not None:
            process.stdout.close()
        return []
    listed = re.findall(
        r"^GPU \d+: (.+?)(?: \(UUID.*)?$", output.decode("utf-8", "replace"), re.MULTILINE
    )
    return listed if process.returncode == 0 else []


def _refusal() -> str:
    """Return the first line of torch's own reason for not starting CUDA."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)[:200]
    return "it gives no reason"
