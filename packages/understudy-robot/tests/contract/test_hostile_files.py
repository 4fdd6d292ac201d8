"""Damaged files of contracts are refused with the value, the rule and the remedy, and never with
another error.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import wiring
from understudy_client import Contract, Mismatch
from understudy_client.contract import form
from understudy_client.contract.form import check_form
from understudy_client.testing.arm import arm_contract
from understudy_client.testing.hostile import damaged, refusal, samples
from understudy_robot.cli.contract import ContractConfig, contract

SCHEMA = json.loads(Path(form.__file__).with_name("contract.schema.json").read_text())
PLAIN = json.loads(
    json.dumps(
        Contract(arm_contract().robots, faults=(Mismatch("weights", "", "a", "b", "c"),)).to_json()
    )
)


@pytest.mark.long
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


@pytest.mark.short("openpi")
@pytest.mark.parametrize(
    "make", [wiring.lerobot, wiring.openpi, wiring.groot, wiring.groot_processor]
)
def test_damaged_folders_of_other_tools_are_compared_or_refused(
    make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "policy")
    robot = tmp_path / "robot.json"
    Contract({"": wiring.facts()}, kind="robot").write(robot)
    for file in sorted(folder.rglob("*.json")):
        plain = json.loads(file.read_text())
        for place, hostile in samples(plain, 40):
            file.write_text(json.dumps(damaged(plain, place, hostile)))
            message = refusal(lambda: contract(ContractConfig(paths=(str(folder), str(robot)))))
            assert not message or str(folder) in message
        file.write_text(json.dumps(plain))
    capsys.readouterr()
