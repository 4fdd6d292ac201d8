"""Each fault of lab/benchmarks/planted_faults.py is named by rule and place, and sound datasets
raise no alarm.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import planted_faults as planted
import thresholds
from planted_images import UNDECIDED
from understudy_data import Catalog
from understudy_kit import main
from understudy_tools.check.examine import check_dataset, examine

KNOWN_FAULTS = [fault for fault in planted.FAULTS if fault.split == "known"]
NUMBERS = thresholds.find_numbers()
NAMED = {name for number in NUMBERS for name in number.origin.fault.split()}
NEEDED = [fault for fault in KNOWN_FAULTS if fault.name in NAMED]


def _is_long(fault: Any) -> bool:
    return fault.depth == "sample" and fault.version.startswith("g")  # a recording of a robot


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return planted.write_bases(tmp_path_factory.mktemp("planted"))


def test_there_are_enough_faults() -> None:
    assert len({fault.name for fault in planted.FAULTS}) == len(planted.FAULTS) >= 40


def test_held_faults_are_a_split_of_their_own() -> None:
    splits = [fault.split for fault in planted.FAULTS]
    assert splits.count("held") >= 50
    assert set(splits) == {"known", "held"}


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_number_of_a_rule_is_there_for_planted_faults(number: Any) -> None:
    assert set(number.origin.fault.split()) <= {fault.name for fault in KNOWN_FAULTS}
    assert number.origin.fault
    assert number.origin.meaning


@pytest.mark.parametrize(
    "fault",
    [
        # Faults in images of recordings are found by rules that faults in generated images prove,
        # too.
        pytest.param(fault, id=fault.name, marks=pytest.mark.long if _is_long(fault) else ())
        for fault in KNOWN_FAULTS
    ],
)
def test_check_names_the_planted_fault(fault: Any, bases: dict[str, Path], tmp_path: Path) -> None:
    if fault.version not in bases:
        pytest.skip("needs UNDERSTUDY_TEST_DATA")
    with planted.planted(fault, bases, tmp_path) as root:
        report = check_dataset(root, fault.depth)
    if fault.name in UNDECIDED:
        assert fault.result(report) == "undecided"
        return
    assert fault.result(report) == "named", report.findings
    named = next(
        finding for finding in report.findings if fault.is_named_by(finding, report.episodes)
    )
    assert named.message
    json.dumps(report.to_json(), allow_nan=False)
    assert named.fix or fault.name == "video_of_another_size"


@pytest.mark.long
@pytest.mark.parametrize("fault", NEEDED, ids=lambda fault: fault.name)
def test_numbers_of_rules_need_their_fault(
    fault: Any, bases: dict[str, Path], tmp_path: Path
) -> None:
    """Prints for each number the factor from which its fault is no longer named."""
    if fault.version not in bases:
        pytest.skip("needs UNDERSTUDY_TEST_DATA")
    with planted.planted(fault, bases, tmp_path) as root:
        facts = examine(Catalog.open(root), fault.depth)
        margins = thresholds.measure_fault(NUMBERS, fault, facts)
    print(margins)
    assert margins
    assert None not in margins.values()


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_sound_datasets_raise_no_alarm(bases: dict[str, Path], version: str) -> None:
    assert check_dataset(bases[version], "all").findings == ()


@pytest.mark.parametrize("title", sorted(planted.SOUND))
def test_unusual_but_sound_datasets_raise_no_alarm(title: str, tmp_path: Path) -> None:
    planted.SOUND[title](tmp_path / "set")
    assert planted.alarms(check_dataset(tmp_path / "set"), set()) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["g1_v21", "g1_v30", "gr1_sim_v20"])
def test_real_recordings_raise_no_alarm(real_data: Path, name: str) -> None:
    report = check_dataset(real_data / name, "rows")
    assert planted.alarms(report, planted.KNOWN.get(name, set())) == []


@pytest.mark.long
def test_outputs_of_edit_raise_no_alarm(real_data: Path, tmp_path: Path) -> None:
    ranges = {
        "0": [[0, 60], [80, 200]],
        "1": [[10, 150]],
        "2": [[0, 90], [91, 250]],
        "3": [[5, 200]],
    }
    ranges |= {"4": [[30, 250]], "5": [[0, 270]], "6": [[20, 120], [130, 270]], "7": [[3, 280]]}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    (tmp_path / "times.json").write_text(json.dumps({"0": [3.1, 9], "1": [4.2]}))
    pieces = {
        str(e): [round(1.2 + 3.1 * i + 0.13 * e, 3) for i in range(1 + e % 2)] for e in range(8)
    }
    (tmp_path / "pieces.json").write_text(json.dumps(pieces))
    g1, g1_v30, gr1 = (str(real_data / name) for name in ("g1_v21", "g1_v30", "gr1_sim_v20"))
    for name, command, sources, options, known in (
        # The camera of the first episode repeats each image there, unlike in the other ranges.
        ("keep", "edit", [g1_v30], ["--keep-ranges", str(tmp_path / "keep.json")], {"images.rate"}),
        ("transcode", "edit", [g1_v30], ["--size", "224", "--codec", "libx264"], set()),
        ("gr1", "edit", [gr1], [], set()),
        ("split", "edit", [g1], ["--split", "train=0-4", "val=5-7"], set()),
        ("merge", "edit", [str(tmp_path / "split/train"), str(tmp_path / "split/val")], [], set()),
        # The actions of the simulation start with a step, which short segments do not all hold.
        ("segment", "segment", [gr1], ["--times", str(tmp_path / "times.json")], {"values.jump"}),
        # 20 pieces, of which those of one recording hold the hand in a way of their own.
        ("pieces", "segment", [g1], ["--times", str(tmp_path / "pieces.json")], {"images.rate"}),
    ):
        assert main([command, *sources, str(tmp_path / name), *options]) == 0
        for root in (
            [tmp_path / name / part for part in ("train", "val")]
            if name == "split"
            else [tmp_path / name]
        ):
            assert planted.alarms(check_dataset(root), known) == [], name
