"""Each planted wiring fault is named before the first action, with the remedy of its kind; right
pairings have none.
"""

import json
from pathlib import Path

import jsonschema
import pytest

import wiring
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client import Contract, RobotFacts, VectorFacts, compare_contracts
from understudy_client.contract import facts as contract_facts
from understudy_client.contract.mismatch import REMEDIES
from understudy_robot.cli.contract import ContractConfig, contract, read_any

SCHEMA = json.loads((Path(contract_facts.__file__).parent / "contract.schema.json").read_text())


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> wiring.Sets:
    return wiring.Sets(tmp_path_factory.mktemp("wiring"))


@pytest.mark.parametrize("name", wiring.FAULTS)
def test_each_wiring_fault_is_named(name: str, sets: wiring.Sets) -> None:
    planted = wiring.FAULTS[name]
    found = wiring.listed(planted.make(sets))
    assert {(mismatch.kind, mismatch.key) for mismatch in found} == planted.named
    assert all(mismatch.remedy == REMEDIES[mismatch.kind] and mismatch.fix for mismatch in found)


@pytest.mark.parametrize("name", wiring.RIGHT)
def test_right_pairings_have_no_contradiction(name: str, sets: wiring.Sets) -> None:
    pairing = wiring.RIGHT[name](sets)
    assert wiring.listed(pairing) == []
    for path in pairing:
        if path is not None:
            plain = json.loads(
                json.dumps(read_any(str(path), ContractConfig(paths=(str(path),))).to_json())
            )
            jsonschema.validate(plain, SCHEMA)
            assert Contract.from_json(plain).to_json() == plain


def test_the_faults_of_the_threads_are_all_planted() -> None:
    threads = " ".join(planted.thread for planted in wiring.FAULTS.values())
    named = (
        "#4415",
        "#4647",
        "#4577",
        "#4578",
        "#4846",
        "#1025",
        "#6069",
        "#1046",
        "#414",
        "#912",
        "#1012",
    )
    assert [thread for thread in named if thread not in threads] == []
    assert all("#" in planted.thread for planted in wiring.FAULTS.values())
    assert len(wiring.FAULTS) >= 24
    assert len(wiring.RIGHT) >= 12


@pytest.mark.parametrize("name", wiring.IN_MOTION)
def test_faults_that_only_motion_shows_are_named_within_forty_observations(name: str) -> None:
    """Images and units after five; a reading 1,000 deviations away at once. Some numbers have a
    better explanation.
    """
    change, kind = wiring.IN_MOTION[name]
    rows = [wiring.first_named(change, kind, seed) for seed in range(4)]
    assert all(row is not None and row[0] <= wiring.MOST_SEEN for row in rows)
    assert sum(row is not None and row[1] == kind for row in rows) >= 2
    assert kind not in ("color order", "orientation", "degrees") or rows == [(5, kind)] * 4
    assert kind in REMEDIES


def test_relative_actions_of_groot_have_their_own_statistics(tmp_path: Path) -> None:
    whole, lacking = (
        wiring.groot_processor(tmp_path / name, "RELATIVE", name == "whole")
        for name in ("whole", "lacking")
    )
    facts = read_any(str(whole), ContractConfig(paths=(str(whole),))).robots["new_embodiment"]
    assert facts.action.learned == ("state",) * 5 + ("absolute",)
    assert facts.action.references == ("absolute",) * 6
    assert (facts.chunk, facts.action.normalization.mode, list(facts.cameras)) == (
        16,
        "quantile",
        ["front", "wrist"],
    )
    assert wiring.listed((whole, None)) == []
    assert [(fault.kind, fault.key) for fault in wiring.listed((lacking, None))] == [
        ("statistics missing", "action.single_arm")
    ]


def test_unknown_facts_are_listed_and_contradict_nothing(tmp_path: Path) -> None:
    nothing = VectorFacts.unmeasured("", ())
    unknown = Contract(
        {"": RobotFacts(float("nan"), 0, "", "", nothing, nothing, {})}, kind="robot"
    )
    known = Contract({"": wiring.facts()})
    assert compare_contracts(known, unknown) == []
    assert {'robots."".fps', 'robots."".state.units', 'robots."".action.gripper', "weights"} <= set(
        unknown.unknowns()
    )
    assert 'robots."".fps' not in known.unknowns()
    for each in (unknown, known):
        plain = json.loads(json.dumps(each.to_json()))
        jsonschema.validate(plain, SCHEMA)
        each.write(tmp_path / "contract.json")
        assert Contract.read_folder(tmp_path) is not None
    for damage in ({"kind": "toaster"}, {"version": 1}, {"robots": {"": {"fps": 1}}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, **damage}, SCHEMA)
        with pytest.raises(ValueError):
            Contract.from_json({**plain, **damage})


def test_contract_command_prints_and_writes(
    sets: wiring.Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, dataset = wiring.RIGHT["LeRobot's ACT and its dataset"](sets)
    assert (
        contract(ContractConfig(paths=(str(policy),), output=str(tmp_path / "c.json"), json=True))
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["contract"] == json.loads((tmp_path / "c.json").read_text())
    assert 'robots."".fps' in printed["open"]
    assert contract(ContractConfig(paths=(str(policy), str(dataset)), images=0)) == 0
    assert "no contradiction" in capsys.readouterr().out
    broken, _ = wiring.FAULTS["statistics under the name of a dataset"].make(sets)
    assert contract(ContractConfig(paths=(str(dataset), str(broken)), images=0, json=True)) == 1
    kinds = {
        fault["kind"]: fault["remedy"]
        for fault in json.loads(capsys.readouterr().out)["mismatches"]
    }
    assert kinds == {"statistics ignored": "rename statistics"}
    with refused("output", kind=ConfigError):
        contract(ContractConfig(paths=(str(policy),), output=str(tmp_path / "c.json")))
    with refused("nothing-there", kind=ConfigError):
        contract(ContractConfig(paths=(str(tmp_path / "nothing-there"),)))
    (tmp_path / "empty").mkdir()
    with refused("empty", kind=ConfigError):
        contract(ContractConfig(paths=(str(tmp_path / "empty"),)))
