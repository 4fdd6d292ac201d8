"""Types of policies, formats and weights whose distribution is not installed: the pip command that
brings it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.policies.inference import load_policy
from understudy.policies.registry import BUILT_IN, ZOO, own_type_names, policy_type, type_names
from understudy.policies.weight_files import open_weights
from understudy.testing.runs import SHORT, trained_run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_base import PIP_LINES, ConfigError, EntryPoint, MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_data.checksums import write_checksums
from understudy_kit import main
from understudy_kit.cli.main import WRONG_INPUT
from understudy_kit.testing.packages import install
from understudy_zoo.folder_formats import FOLDERS, describe_folder
from understudy_zoo.graph import make_graph

ROBOT: Any = SimpleNamespace(config=SimpleNamespace(type="mine"))


def none(group: str) -> dict[str, EntryPoint]:
    return {}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the trainer is installed."""
    # `entry_points` last: a module that is first imported after it, and the top of the
    # distribution, would keep `none` in later tests.
    for module in (
        "understudy.policies.registry",
        "understudy_kit.cli.help_texts",
        "understudy_base",
        "understudy_base.entry_points",
    ):
        monkeypatch.setattr(f"{module}.find_entry_points", none)


def test_all_types_of_this_project_are_installed_here() -> None:
    assert own_type_names() == [*BUILT_IN, *ZOO]


@pytest.mark.parametrize("name", ZOO)
def test_a_type_that_is_not_installed_names_its_pip_line(alone: None, name: str) -> None:
    assert type_names() == sorted(BUILT_IN)
    with refused(name, PIP_LINES["zoo"], kind=MissingExtraError):
        policy_type(name)


def test_a_command_names_the_pip_line_in_one_line(
    alone: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "--policy.type", "value", "--data.root", "d", "--output-dir", "o"])
        == WRONG_INPUT
    )
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert PIP_LINES["zoo"] in printed


def test_a_folder_of_such_a_type_names_the_pip_line(alone: None, tmp_path: Path) -> None:
    trained_run(tmp_path / "r", **SHORT)
    path = tmp_path / "r/policy/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"type": "value"}))
    write_checksums(path.parent)
    with refused("value", PIP_LINES["zoo"], kind=MissingExtraError):
        load_policy(tmp_path / "r/policy")


@pytest.mark.parametrize("kind", ["lerobot", "openpi", "torch_export", "onnx"])
def test_a_format_that_is_not_installed_names_its_pip_line(
    alone: None, kind: str, tmp_path: Path
) -> None:
    with refused(kind, PIP_LINES["zoo"], kind=MissingExtraError):
        export(ExportConfig(run=str(tmp_path), format=kind))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_weights_of_jax_name_the_pip_line_of_their_reader(alone: None, tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "params/manifest.ocdbt").touch()
    with refused("JAX", PIP_LINES["zoo"], kind=MissingExtraError):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        lambda: describe_folder("lerobot", SimpleNamespace(type="mine"), {}, {}),
        lambda: make_graph(ROBOT, {}, 1),
    ],
    ids=["folder", "graph"],
)
def test_a_type_without_an_entry_point_names_the_formats_that_it_has(
    call: Callable[[], object],
) -> None:
    """Any package may offer one: a pip line of this project would help nobody."""
    with refused("mine", "understudy", kind=ConfigError) as raised:
        call()
    assert PIP_LINES["zoo"] not in str(raised.value)


def test_formats_of_a_type_are_the_entry_points_that_begin_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"[{FOLDERS}]\nmine.boxes = toys_folders:describe\nmined.jars = toys_folders:describe\n"
    code = "def describe(config, *_):\n    return f'boxes of {config.type}'\n"
    install(tmp_path, "folders-1.0", text, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = SimpleNamespace(type="mine")
    described: object = describe_folder("boxes", mine, {}, {})
    assert described == "boxes of mine"
    with refused("mine", "boxes", "jars", "understudy", kind=ConfigError):
        describe_folder("jars", mine, {}, {})
    with refused("mined", "jars", kind=ConfigError) as raised:
        describe_folder("boxes", SimpleNamespace(type="mined"), {}, {})
    assert str(raised.value).count("boxes") == 1
