"""Damaged files of contracts are refused with the value, the rule and the remedy, and never with another error."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import wiring
from understudy.testing.arm import arm_contract
from understudy_base.errors import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client.contract import form
from understudy_client.contract.facts import FILE, Contract, read_contract, write_contract
from understudy_client.contract.form import check_form
from understudy_client.contract.mismatch import Mismatch
from understudy_robot.cli.contract import ContractConfig, contract
from understudy_robot.testing.hostile import damaged, refusal, samples

ROOT = Path(__file__).parents[4]
SCHEMA = json.loads(Path(form.__file__).with_name("contract.schema.json").read_text())
PLAIN = json.loads(
    json.dumps(Contract(arm_contract().robots, faults=(Mismatch("weights", "", "a", "b", "c"),)).to_json())
)


def test_the_schema_is_that_of_the_form() -> None:
    make_schema = runpy.run_path(str(ROOT / "scripts/contract_schema.py"))["make_schema"]
    assert json.loads(make_schema()) == SCHEMA, "run python scripts/contract_schema.py"


def test_a_file_is_judged_as_by_its_json_schema() -> None:
    """Numbers that JSON does not have are refused, too."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    check_form(PLAIN)
    for place, hostile in samples(PLAIN, 300):
        changed = damaged(PLAIN, place, hostile)
        if hostile != hostile:
            continue
        try:
            check_form(changed)
        except ValueError:
            assert not validator.is_valid(changed), (place, hostile)
        else:
            assert validator.is_valid(changed), (place, hostile)


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
        (("robots", HEAD, "state", "gripper"), {"a": [1]}, (f"robots.{HEAD}.state.gripper.a", "[1]", "2")),
        (("robots", HEAD, "action", "figures", "std", 1), "x", ("figures.std[1]", "'x'", "unknown")),
        (("robots", HEAD, "action", "key"), "", (f"robots.{HEAD}.action.key", "''", ">= 1")),
        (("robots", HEAD, "state", "units"), "\ud800", (f"robots.{HEAD}.state.units", r"'\ud800'", "utf-8")),
        (("robots", HEAD, "cameras", CAMERA, "color"), "red", (f"{CAMERA}.color", "'red'", "'RGB'")),
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
        (tmp_path / FILE).write_text(json.dumps(damaged(PLAIN, place, hostile)))
        message = refusal(lambda: read_contract(tmp_path))
        assert not message or (str(tmp_path / FILE) in message and "understudy export" in message)
    unknown = damaged(PLAIN, ("faults", 0, "kind"), "gremlin")
    (tmp_path / FILE).write_text(json.dumps(unknown))
    with refused("faults[0].kind", "gremlin", kind=ConfigError):
        read_contract(tmp_path)
    (tmp_path / FILE).write_text("[" * 10**5)
    with pytest.raises(ConfigError):
        read_contract(tmp_path)


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
    path = tmp_path / FILE
    path.write_text(json.dumps(damaged(PLAIN, ("robots", head, vector, *place), value)))
    with pytest.raises(ConfigError) as error:
        contract(ContractConfig(paths=(str(path),)))
    assert place[0].removesuffix("s")[:3] in str(error.value) or place[1] in str(error.value)


@pytest.mark.parametrize("make", [wiring.lerobot, wiring.openpi, wiring.groot, wiring.groot_processor])
def test_damaged_folders_of_other_tools_are_compared_or_refused(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, robot = make(tmp_path / "policy"), tmp_path / "robot.json"
    write_contract(robot, Contract({"": wiring.facts()}, kind="robot"))
    for file in sorted(folder.rglob("*.json")):
        plain = json.loads(file.read_text())
        for place, hostile in samples(plain, 40):
            file.write_text(json.dumps(damaged(plain, place, hostile)))
            message = refusal(lambda: contract(ContractConfig(paths=(str(folder), str(robot)))))
            assert not message or str(folder) in message
        file.write_text(json.dumps(plain))
    capsys.readouterr()
