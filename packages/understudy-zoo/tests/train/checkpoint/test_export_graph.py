"""`understudy export --format torch_export`: a run's policy as a graph that needs torch alone."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import understudy as us
from understudy.policies.common.encoders import byte_tokens
from understudy.testing.runs import trained_run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_kit.cli.main import WRONG_INPUT
from understudy_zoo.graph import check_type


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(
        tmp_path_factory.mktemp("graph") / "run", steps=2, checkpoint={"every": 2}, val={"every": 0}
    )


@pytest.mark.long
def test_exported_graph_acts_as_the_policy(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "graph"
    words = [
        "export",
        str(trained),
        "--format",
        "torch_export",
        "--steps",
        "2",
        "--output-dir",
        str(out),
    ]
    assert main(words) == 0
    about = json.loads((out / "graph.json").read_text())
    assert set(about["parity"]["largest_difference"]) == {"1", "4"}
    assert (out / "contract.json").is_file()
    module = torch.export.load(out / about["file"]).module()
    policy = us.load_policy(trained, contract="off")
    rng = np.random.default_rng(0)
    observation: dict[str, object] = {"task": ["move", "stop", ""]}
    inputs = []
    for own in about["inputs"]:
        shape = (3, *own["shape"][1:])
        if own["name"] == "task":
            value = byte_tokens(["move", "stop", ""], own["shape"][1])
        elif own["name"] == "noise":
            value = torch.randn(shape, generator=torch.Generator().manual_seed(4))
        elif own["dtype"] == "uint8":
            value = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
        else:
            value = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
        inputs.append(value)
        if own["name"] not in ("task", "noise"):
            observation[own["name"]] = value
    wanted = policy.act(observation, steps=2, generator=torch.Generator().manual_seed(4))
    assert np.abs(module(*inputs).detach().numpy() - wanted).max() < 1e-5
    assert main(words) == WRONG_INPUT  # nothing is replaced


@pytest.mark.parametrize("kind", ["pi05", "pi0", "world_action"])
def test_types_without_a_graph_are_refused_by_name(kind: str) -> None:
    with refused(kind, kind=ConfigError):
        check_type(kind)


def test_unknown_head_is_refused(trained: Path, tmp_path: Path) -> None:
    with refused("nobody", kind=ConfigError):
        export(
            ExportConfig(
                run=str(trained),
                format="torch_export",
                head="nobody",
                output_dir=str(tmp_path / "out"),
            )
        )
    assert not (tmp_path / "out").exists()


def test_steps_belong_to_graphs(trained: Path) -> None:
    assert main(["export", str(trained), "--steps", "3"]) == WRONG_INPUT
