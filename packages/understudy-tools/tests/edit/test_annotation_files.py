"""Files of metadata, subtasks and tasks: values as written, and no entry lost without a word."""

import json
from pathlib import Path

import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.write.dataset_files import statistic_value
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit.write_set import write_outputs
from understudy_tools.testing.edited import edit, segment


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "v30"
    write_dataset(root, Spec("v3.0", lengths=(4, 4), cameras=()))
    return root


def write(path: Path, content: str) -> str:
    path.write_text(content)
    return str(path)


def test_edit_reads_fields_of_csv_as_written(source: Path, tmp_path: Path) -> None:
    head = "episode_index,serial,operator,lot,speed,ok,count"
    lines = [head, "0,007,ann,1_0,0.5,true,3", "1,010,7,2,,FALSE,9223372036854775807"]
    edit(source, tmp_path / "out", metadata=write(tmp_path / "meta.csv", "\n".join(lines)))
    assert Catalog.open(tmp_path / "out").episode_metadata() == {
        "serial": {0: "007", 1: "010"},
        "operator": {0: "ann", 1: "7"},
        "lot": {0: "1_0", 1: "2"},
        "speed": {0: 0.5},
        "ok": {0: True, 1: False},
        "count": {0: 3, 1: 2**63 - 1},
    }


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("m.csv", ",episode_index,q\n0,1,2\n1,0,3\n", r"m\.csv"),  # the index column of pandas
        ("m.csv", "episode_index,q,q\n0,1,2\n1,1,3\n", "'q'"),
        ("m.json", '{"0": {"q": 1}, "1": {"q": 2}, "1": {"q": 3}}', "'1'"),
        ("m.json", json.dumps({"0": {"q": 2**70}, "1": {"q": 1}}), "'q'"),
    ],
)
def test_edit_refuses_ambiguous_metadata(
    source: Path, tmp_path: Path, name: str, content: str, named: str
) -> None:
    with pytest.raises(DatasetError, match=named):
        edit(source, tmp_path / "out", metadata=write(tmp_path / name, content))
    assert not (tmp_path / "out").exists()


def test_edit_refuses_repeated_and_unknown_keys(source: Path, tmp_path: Path) -> None:
    with refused(where="twice.json"):
        segment(
            source,
            tmp_path / "out",
            times=write(tmp_path / "twice.json", '{"0": [0.1], "0": [0.2]}'),
        )
    with refused(where="tasks.json"):
        edit(
            source,
            tmp_path / "out",
            tasks=write(tmp_path / "tasks.json", '{"lift the red blok": "lift"}'),
        )
    with refused(where="check.json"):
        edit(
            source,
            tmp_path / "out",
            exclude_bad=write(tmp_path / "check.json", '{"bad_episodes": [0.7]}'),
        )


def test_edit_records_no_credentials(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plans = make_plans(EditConfig(paths=(str(source), str(out))), [Catalog.open(source)], out)
    write_outputs(
        plans, out, ["understudy", "edit", "https://me:hunter2@host/set?token=hunter2", str(out)]
    )
    command = json.loads((out / "meta/edit.json").read_text())["command"]
    assert command == ["understudy", "edit", "https://host/set", str(out)]


def test_edit_keeps_facts_of_episodes_apart_from_metadata_of_the_same_name(
    source: Path, tmp_path: Path
) -> None:
    named = write(
        tmp_path / "meta.json", json.dumps({e: {"task": "x", "serial": 2**64 - 1} for e in "01"})
    )
    edit(source, tmp_path / "out", metadata=named)
    assert Catalog.open(tmp_path / "out").episode_metadata()["serial"] == {
        0: 2**64 - 1,
        1: 2**64 - 1,
    }
    edit(tmp_path / "out", tmp_path / "kept", where='task != "x"')
    assert Catalog.open(tmp_path / "kept").num_episodes == 2


def test_statistics_of_64_bit_integers_keep_their_sign() -> None:
    feature = Feature("key", "int64", (2,))
    low, high = statistic_value(feature, "max", np.array([-(2.0**63), 2.0**63]))
    assert low == -(2**63)
    assert 2**63 - 2048 < high < 2**63
