"""A load fills the policy part by part: no second copy of the weights is in memory, and no tensor
stays unfilled.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from understudy.policies import policy_folder, weight_files
from understudy.policies.pi05.config import Sizes
from understudy.policies.pi05.released_keys import EMBEDDING, EXPERT_HEAD, HEAD
from understudy.policies.policy import build_saved
from understudy.policies.weight_files import FILE, INDEX
from understudy.testing.pi05 import SMALL
from understudy.testing.pi05_policy import NORMALISATION
from understudy.testing.policies import policy as flow_policy
from understudy.testing.released import released_shapes

WIDE = replace(
    SMALL,
    vlm=replace(SMALL.vlm, width=768, mlp_dim=2048),
    expert=replace(SMALL.expert, width=512),
    vocab=2**13,
)
WIDEST = replace(WIDE, vlm=replace(WIDE.vlm, width=2048, mlp_dim=6144), vocab=2**14)


def flow(path: Path, sizes: Sizes) -> Path:
    """A folder of the type flow, about as large as a pi0.5 of these dimensions."""
    flow_policy(width=sizes.vlm.width).save(path)
    return path


def pi05(path: Path, sizes: Sizes, first: str = "", parts: int = 1, **config: object) -> Path:
    """A folder of our own with released names."""
    path.mkdir()
    tensors = {first + key: torch.ones(shape) for key, shape in released_shapes(sizes).items()}
    if first:  # LeRobot's trainer writes the embedding, too
        tensors[first + EMBEDDING] = tensors[first + HEAD] * 2
    if parts == 1:
        save_file(tensors, path / FILE)
    else:
        names = {key: f"{number % parts}.safetensors" for number, key in enumerate(tensors)}
        for name in set(names.values()):
            save_file({key: tensors[key] for key in tensors if names[key] == name}, path / name)
        (path / INDEX).write_text(json.dumps({"weight_map": names}))
    dimensions = {key: value for key, value in asdict(sizes).items() if key != "adaptive"}
    facts = {"type": "pi05", "action_dim": 3, "state_dim": 2, "cameras": [], "chunk": 5}
    (path / "config.json").write_text(json.dumps((config or facts) | {"dimensions": dimensions}))
    (path / "normalisation.json").write_text(json.dumps(NORMALISATION))
    return path


def pi052(path: Path, sizes: Sizes) -> Path:
    """A folder of LeRobot's type pi052."""
    inputs = {"observation.state": {"type": "STATE", "shape": [2]}}
    outputs = {"action": {"type": "ACTION", "shape": [3]}}
    features = {"input_features": inputs, "output_features": outputs}
    return pi05(path, sizes, "model.", type="pi052", chunk_size=5, **features)


def sharded(path: Path, sizes: Sizes) -> Path:
    """A folder of openpi in shards."""
    return pi05(path, sizes, parts=3, action_horizon=5, pi05=True)


Maker = Callable[[Path, Sizes], Path]
MAKERS: list[Maker] = [flow, pi05, pi052, sharded]

MEASURE = """
import sys
from understudy.policies import policy_folder, weight_files
from understudy.policies.policy import build_saved

def peak():
    lines = open("/proc/self/status")
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

small, large, how = sys.argv[1:]
weight_files.PART, weight_files.LARGE = 1 << 20, 64
build_saved(policy_folder.load(small), small)  # libraries settle
before = peak()
made = build_saved(saved := policy_folder.load(large), large)
if how == "whole":
    tensors = dict(saved.weights)
print(peak() - before, sum(p.numel() * p.element_size() for p in made.parameters()))
"""
NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)


def grown(folder: Path, make: Maker, sizes: Sizes, how: str = "parts") -> float:
    """Peak memory of a load in a new process, as a multiple of the bytes of the policy's
    parameters.
    """
    folder.mkdir()
    paths = [make(folder / name, own) for name, own in (("small", SMALL), ("large", sizes))]
    command = [sys.executable, "-c", MEASURE, *map(str, paths), how]
    peak, size = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600
    ).stdout.split()
    assert int(size) > 4e7, "too small to be measured"
    return int(peak) / int(size)


@pytest.mark.short("flow")
@NEEDS_PROC
@pytest.mark.parametrize("make", [flow, pi052])
def test_load_takes_no_second_copy(make: Maker, tmp_path: Path) -> None:
    assert grown(tmp_path / "w", make, WIDE) < 1.15


@NEEDS_PROC
@pytest.mark.long
@pytest.mark.parametrize("make", MAKERS)
def test_load_of_hundreds_of_megabytes_takes_no_second_copy(make: Maker, tmp_path: Path) -> None:
    assert grown(tmp_path / "w", make, WIDEST) < 1.15
    assert grown(tmp_path / "control", make, WIDEST, "whole") > 1.75, (
        "the control holds the file beside the policy"
    )


@pytest.mark.parametrize("make", MAKERS)
def test_each_tensor_of_the_policy_is_filled(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parameters have the values of the file, and without any one of its tensors the folder
    does not load.
    """
    monkeypatch.setattr(weight_files, "LARGE", 1)
    path = make(tmp_path / "w", SMALL)
    saved = policy_folder.load(path)
    made = build_saved(saved, path)
    for name, parameter in made.named_parameters():
        if make is flow:
            assert torch.equal(parameter, saved.weights[name])
        else:
            assert parameter.eq(2 if name == "embedding.weight" and make is pi052 else 1).all(), (
                name
            )
    # Neither head of LeRobot's files is read; without the embedding its head is the embedding, to
    # which it is tied.
    unread = (EXPERT_HEAD, HEAD, EMBEDDING) if make is pi052 else (EXPERT_HEAD,)
    for key in [name for name in saved.weights if not name.endswith(unread)]:
        weights = copy(saved.weights)
        weights.shapes = {name: shape for name, shape in weights.shapes.items() if name != key}
        with pytest.raises(ValueError, match=re.escape(key.removeprefix("model."))):
            made.load_weights(weights)
