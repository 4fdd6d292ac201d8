"""Damaged files of contracts are refused with the value, the rule and the remedy, and never with
another error.
"""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client.contract import form
from understudy_client.contract.facts import Contract
from understudy_client.contract.form import check_form
from understudy_client.contract.mismatch import Mismatch
from understudy_client.testing.arm import arm_contract
from understudy_client.testing.hostile import damaged, refusal, samples

PLAIN = json.loads(
    json.dumps(
        Contract(arm_contract().robots, faults=(Mismatch("weights", "", "a", "b", "c"),)).to_json()
    )
)
HEAD = next(iter(PLAIN["robots"]))


CAMERA = next(iter(PLAIN["robots"][HEAD]["cameras"]))


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("version",), 1, ("version", "1", "2")),
        (("kind",), "toaster", ("kind", "'toaster'", "environment")),
        (("weights",), "beef", ("weights", "'beef'", "[0-9a-f]{64}")),
        (("robots", HEAD, "fps"), -1, (f"robots.{HEAD}.fps", "-1", "> 0.0")),
        (("robots", HEAD, "state"), 5, (f"robots.{HEAD}.state", "5", "object")),
        (
            ("robots", HEAD, "state", "gripper"),
            {"a": [1]},
            (f"robots.{HEAD}.state.gripper.a", "[1]", "2"),
        ),
        (
            ("robots", HEAD, "action", "figures", "std", 1),
            "x",
            ("figures.std[1]", "'x'", "unknown"),
        ),
        (("robots", HEAD, "action", "key"), "", (f"robots.{HEAD}.action.key", "''", ">= 1")),
        (
            ("robots", HEAD, "state", "units"),
            "\ud800",
            (f"robots.{HEAD}.state.units", r"'\ud800'", "utf-8"),
        ),
        (
            ("robots", HEAD, "cameras", CAMERA, "color"),
            "red",
            (f"{CAMERA}.color", "'red'", "'RGB'"),
        ),
        (("robots", HEAD, "cameras", CAMERA, "size"), [1], (f"{CAMERA}.size", "[1]", ">= 2")),
        (("robots", HEAD, "cameras", CAMERA, "look"), {}, (f"{CAMERA}.look", "`mean`")),
        (("robots", HEAD, "cameras", CAMERA, "zoom"), 2, (CAMERA, "`zoom`", "network_size")),
        (("robots", ""), {}, ('robots."":', "fps")),
        (("faults", 0, "kind"), "gremlin", ("faults[0].kind", "'gremlin'", "'gripper'")),
        ((), [], ("contract", "[]", "object")),
    ],
)
def test_the_first_wrong_place_is_named_with_its_value_and_rule(
    place: tuple[Any, ...], value: Any, words: tuple[str, ...]
) -> None:
    with refused(*words, kind=ValueError):
        check_form(damaged(PLAIN, place, value))


def test_a_damaged_contract_names_its_place(tmp_path: Path) -> None:
    for place, hostile in samples(PLAIN, 200):
        (tmp_path / Contract.FILE).write_text(json.dumps(damaged(PLAIN, place, hostile)))
        message = refusal(lambda: Contract.read_folder(tmp_path))
        assert not message or (
            str(tmp_path / Contract.FILE) in message and "understudy export" in message
        )
    unknown = damaged(PLAIN, ("faults", 0, "kind"), "gremlin")
    (tmp_path / Contract.FILE).write_text(json.dumps(unknown))
    with refused("faults[0].kind", "gremlin", kind=ConfigError):
        Contract.read_folder(tmp_path)
    (tmp_path / Contract.FILE).write_text("[" * 10**5)
    with pytest.raises(ConfigError):
        Contract.read_folder(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("figures", "std", 0), -1.0),
        (("figures", "min", 0), 1e9),
        (("figures", "q01", 0), 1e9),
        (("gripper",), {"nowhere": [0.0, 1.0]}),
        (("gripper",), {"FIRST": [1.0, 1.0]}),
    ],
)
@pytest.mark.parametrize("vector", ["state", "action"])
def test_figures_and_grippers_that_nothing_has_are_refused(
    vector: str, place: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    head = next(iter(PLAIN["robots"]))
    first = PLAIN["robots"][head][vector]["names"][0]
    if isinstance(value, dict):
        value = {name.replace("FIRST", first): ends for name, ends in value.items()}
    path = tmp_path / Contract.FILE
    path.write_text(json.dumps(damaged(PLAIN, ("robots", head, vector, *place), value)))
    with pytest.raises(ConfigError) as error:
        Contract.read(path)
    assert place[0].removesuffix("s")[:3] in str(error.value) or place[1] in str(error.value)


def test_the_schema_is_that_of_the_form() -> None:
    script = Path(__file__).parents[4] / "scripts/contract_schema.py"
    stored = Path(form.__file__).with_name("contract.schema.json").read_text()
    assert json.loads(runpy.run_path(str(script))["make_schema"]()) == json.loads(stored), (
        f"run {script}"
    )
