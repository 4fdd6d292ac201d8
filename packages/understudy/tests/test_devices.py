"""Cards that this torch cannot use are named in one line, and devices are checked by their name."""

import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from understudy import devices
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import choose_device
from understudy_base import ConfigError


def fake_smi(folder: Path, body: str) -> None:
    """Write a program `nvidia-smi` that runs `body`."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.fixture(autouse=True)
def no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a card, whose `nvidia-smi` a test may write into the folder."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "no driver")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    fake_smi(tmp_path, "exit 9")
    return tmp_path


def warned(device: Literal["auto", "cpu"] = "auto") -> list[str]:
    """Return the lines that a choice of the CPU brings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choose_device(replace(TrainConfig(), device=device).device, 0).type == "cpu"
    return [str(warning.message) for warning in caught]


def test_a_card_that_torch_cannot_use_is_named(
    no_card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warned() == []
    fake_smi(
        no_card,
        "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-x)'; echo 'GPU 1: NVIDIA L4 (UUID: GPU-y)'",
    )
    (line,) = warned()
    assert "NVIDIA H100 80GB HBM3" in line
    assert "2 GPUs" in line
    assert torch.__version__ in line
    assert devices.BUILDS in line
    assert warned("cpu") == []
    with pytest.raises(ConfigError, match="H100"):
        choose_device(replace(TrainConfig(), device="cuda").device, 0)
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert warned() == []


def test_the_drivers_folder_names_a_card_without_nvidia_smi(
    no_card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = no_card / "gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA GeForce RTX 3090\nIRQ:   12\n")
    monkeypatch.setattr(devices, "DRIVER", no_card / "gpus")
    (line,) = warned()
    assert "RTX 3090" in line


def test_nvidia_smi_that_blocks_or_fails_holds_up_nothing(
    no_card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "SMI_SECONDS", 0.3)
    fake_smi(no_card, "trap '' TERM INT\nexec sleep 60")
    began = time.monotonic()
    assert warned() == []
    assert time.monotonic() - began < 30
    for body in (
        "echo 'GPU 0: NVIDIA L4 (UUID: GPU-y)'; exit 1",
        "printf '\\377\\376'",
        "exec /no/such/program",
    ):
        fake_smi(no_card, body)
        assert warned() == []


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (["sm_80", "sm_86", "sm_90"], (8, 9), True),
        (["sm_80", "sm_90"], (9, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_90a"], (9, 1), False),
        (["sm_100f"], (10, 3), True),
        (["sm_100f"], (12, 0), False),
        (["sm_75", "sm_80", "sm_90"], (6, 1), False),
        (["sm_86"], (8, 0), False),
        (["sm_80", "sm_90"], (12, 0), False),
        (["sm_80", "compute_90"], (12, 0), True),
        (["sm_90", "compute_90"], (8, 0), False),
        (["gfx942"], (9, 4), True),
    ],
)
def test_kernels_fit_a_card_by_its_capability(
    built: list[str], capability: tuple[int, int], runs: bool
) -> None:
    assert devices.has_kernels(built, capability) is runs


def cards(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """Pretend that torch, built for sm_80 and sm_90, sees cards of these capabilities."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


def test_a_card_without_kernels_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cards(monkeypatch, (12, 0))
    (line,) = warned()
    assert "card 0" in line
    assert "12.0" in line
    assert "sm_90" in line
    with pytest.raises(ConfigError, match="card 0"):
        choose_device(replace(TrainConfig(), device="cuda").device, 0)
    with pytest.raises(ConfigError, match="card 0"):
        devices.torch_device("cuda")


def test_a_card_without_kernels_beside_a_sound_one_is_refused_with_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards(monkeypatch, (6, 1), (9, 0))
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1"):
        choose_device(TrainConfig().device, 0)
    assert choose_device(TrainConfig().device, 1) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r"cuda:0 .*cuda:1"):
        devices.torch_device("cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "gpu", ""])
def test_a_device_that_is_not_there_is_an_error_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        devices.torch_device(name)
    assert devices.torch_device("cpu") == torch.device("cpu")


def test_a_policy_on_a_device_that_torch_lacks_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Before the folder is read."""
    from understudy.policies.inference import load_policy

    if torch.cuda.is_available():
        pytest.skip("torch finds a GPU here")
    with pytest.raises(ConfigError, match="--device cpu"):
        load_policy(tmp_path, device="cuda")
