"""Graph files give the actions of the policy: any batch size, robots of a mixture, images of any
size.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.policies.flow.model import FlowPolicy
from understudy.policies.inference import RobotPolicy
from understudy.testing.policies import CAMERAS, config
from understudy_base import ConfigError, MissingExtraError
from understudy_base.optional_packages import is_installed
from understudy_zoo.graph import (
    BATCH_SIZES,
    FILES,
    PolicyGraph,
    compare,
    describe_graph,
    example_inputs,
    make_graph,
    write_graph,
)

SIZES = {CAMERAS[0]: (24, 20)}  # of the network's other camera the robot has none
HEADS: dict[str, Any] = {
    "heads": ["arm", "legs"],
    "action": {
        "offset": [[0.5, -1.0, 0.25], [3.0, 1.0, 0.0]],
        "spread": [[2.0, 0.5, 0.1], [4.0, 1.0, 0.0]],
    },
    "observation.state": {"offset": [[1.0, 2.0], [0.0, 0.0]], "spread": [[3.0, 0.5], [2.0, 0.0]]},
    "delta": [[True, False, False], [False, False, False]],
    "dims": {"action": [3, 2], "observation.state": [2, 1]},
}


def robot(model: FlowPolicy, head: str | None = None, **metadata: Any) -> RobotPolicy:
    return RobotPolicy(model.eval(), {"heads": {head or "": metadata}} if metadata else {}, head)


def mixture(normalization: dict[str, Any] = HEADS, seed: int = 3) -> FlowPolicy:
    """A policy of two robots; parameters that are zero in a fresh one are random, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FlowPolicy(config(layers=1, blocks=1), normalization)
        for parameter in model.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return model


FORMATS = [
    "torch_export",
    pytest.param(
        "onnx", marks=pytest.mark.skipif(not is_installed("onnx"), reason="needs the extra onnx")
    ),
]


@dataclass
class Written:
    """A policy, its graph, and the function of the graph's file."""

    robot: RobotPolicy
    graph: PolicyGraph
    function: Callable[[Sequence[torch.Tensor]], torch.Tensor]


@pytest.fixture(scope="module", params=FORMATS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    own = robot(mixture(), "legs", cameras=list(SIZES))
    graph = make_graph(own, SIZES, steps=2)
    return Written(
        own,
        graph,
        write_graph(graph, tmp_path_factory.mktemp("graph") / FILES[request.param], request.param),
    )


@pytest.mark.long
def test_graph_gives_the_actions_of_one_robot(written: Written) -> None:
    report = compare(written.robot, written.graph, written.function, steps=2)
    assert report["largest_difference"].keys() == {str(rows) for rows in BATCH_SIZES}
    assert max(report["largest_difference"].values()) < 1e-5
    assert report["largest_action"] > 0.1
    inputs = [(own.name, own.shape) for own in written.graph.inputs]
    assert inputs[:2] == [(CAMERAS[0], (3, 24, 20)), ("observation.state", (1,))]
    assert written.function(example_inputs(written.graph, 3, seed=0)).shape == (3, 4, 2)


@pytest.mark.parametrize("change", ["units", "weights"])
def test_another_policy_in_the_file_is_refused(written: Written, change: str) -> None:
    """Also where the normalization alone differs: the same weights in other units."""
    units = HEADS | {
        "action": {
            "offset": [[0.5, -1.0, 0.25], [3.0, 1.1, 0.0]],
            "spread": HEADS["action"]["spread"],
        }
    }
    model = mixture(units) if change == "units" else mixture(seed=4 if change == "weights" else 3)
    with pytest.raises(ConfigError):
        compare(robot(model, "legs", cameras=list(SIZES)), written.graph, written.function, 2)


def test_another_policy_of_small_actions_is_refused() -> None:
    """A robot whose actions are micrometers has differences of micrometers."""
    small = HEADS | {
        "action": {
            name: (1e-6 * np.array(HEADS["action"][name])).tolist() for name in HEADS["action"]
        }
    }
    graph = make_graph(robot(mixture(small), "legs", cameras=list(SIZES)), SIZES, steps=1)
    compare(
        robot(mixture(small), "legs", cameras=list(SIZES)), graph, lambda inputs: graph(*inputs), 1
    )
    with pytest.raises(ConfigError):
        compare(
            robot(mixture(small, seed=4), "legs", cameras=list(SIZES)),
            graph,
            lambda inputs: graph(*inputs),
            1,
        )


def test_description_names_the_metadata_of_prompts() -> None:
    graph = make_graph(robot(mixture(), "legs"), SIZES, steps=1)
    facts = {"format": "{task}", "names": ["quality"]}
    described = json.loads(describe_graph(graph, "onnx", 1, {}, {"prompt_metadata": facts}))
    assert described["prompt_metadata"] == facts
    assert "prompt_metadata" not in json.loads(describe_graph(graph, "onnx", 1, {}, {}))


def test_every_input_reaches_the_actions(written: Written) -> None:
    inputs = example_inputs(written.graph, 1, seed=0)
    first = written.function(inputs).detach().numpy()
    for number, own in enumerate(written.graph.inputs):
        changed = [each.clone() for each in inputs]
        changed[number] = (
            written.graph.prepare("another") if own.name == "task" else 1 - changed[number]
        )
        assert not np.allclose(written.function(changed).detach().numpy(), first), own.name


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    graph = make_graph(robot(mixture(), "arm"), SIZES, steps=1)
    with pytest.raises(MissingExtraError):
        write_graph(graph, tmp_path / "policy.onnx", "onnx")
