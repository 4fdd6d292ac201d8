"""Views of a stranger's dataset: settings are checked as flags are, and no file outside of the
dataset is read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format import views
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, write_dataset

SECRET = "my-token-123"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4), cameras=()))
    catalog = Catalog.open(tmp_path / "d")
    catalog.views.save("seed", {"episodes": [0, 1]}, {"episodes": 2})
    return tmp_path / "d"


def forge(root: Path, select: Any, **changes: Any) -> str:
    """Write a view with a digest that fits; return the address."""
    made = json.loads((root / "meta/views/seed.json").read_text())["versions"][0]
    made.pop("digest")
    content = made | {"select": select} | changes
    forged = {"versions": [content | {"digest": views._digest(content)}]}
    (root / "meta/views/forged.json").write_text(json.dumps(forged))
    return f"{root}#forged"


WRONG: list[tuple[str, Any]] = [
    *(("drop_n_first_frames", value) for value in (-5, True, "x", 2.0, [1], None, 1 << 63)),
    *(("drop_n_last_frames", value) for value in (-1, False, "3", 0.5, {})),
    *(("val_fraction", value) for value in (True, "x", 2.0, -0.1, 1.0, float("nan"), [0.1], None)),
    *(
        (name, value)
        for name in ("episodes", "exclude_episodes", "val_episodes")
        for value in ("x", 3, [True], [-1])
    ),
    *(
        (name, value)
        for name in ("episodes", "exclude_episodes", "val_episodes")
        for value in ([1.0], ["0-2"], None)
    ),
    *(("where", value) for value in (3, True, ["success"], None)),
    *(("keep_rule", value) for value in ("neither", True, [], None)),
    *(("frame_weights_in", value) for value in ("x", 1, ["order"])),
    *(("frame_weights", value) for value in (3, ["a"], "/tmp/w.parquet", "../w.parquet", None)),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_settings_that_no_flag_takes_are_refused_by_name(root: Path, name: str, value: Any) -> None:
    with refused(name, where="meta/views/forged.json", fix="select"):
        EpisodeArrays(forge(root, {name: value}))


def test_settings_that_flags_take_are_read(root: Path) -> None:
    select = {
        "episodes": [0, 1],
        "drop_n_first_frames": 1,
        "val_fraction": 0,
        "keep_rule": "start",
        "where": "length > 1",
    }
    assert EpisodeArrays(forge(root, select)).num_episodes == 2


@pytest.mark.parametrize(
    "facts", [{"selected": {}}, {"selected": {"episodes": "x"}}, {"selected": {"episodes": True}}]
)
def test_facts_of_other_types_are_refused(root: Path, facts: dict[str, Any]) -> None:
    with refused(where="meta/views/forged.json", fix="select"):
        EpisodeArrays(forge(root, {}, **facts))


def places(root: Path, tmp_path: Path) -> list[str]:
    (tmp_path / "secret.json").write_text(json.dumps({SECRET: [[0, 5]]}))
    os.mkfifo(tmp_path / "pipe")
    outside = os.path.relpath(tmp_path / "secret.json", root)
    return [
        str(tmp_path / "secret.json"),
        outside,
        str(tmp_path / "pipe"),
        "/dev/zero",
        "/dev/stdin",
        "",
    ]


def test_files_outside_of_the_dataset_are_neither_read_nor_shown(
    root: Path, tmp_path: Path
) -> None:
    os.makedirs(root / "meta/views/files", exist_ok=True)
    for place in places(root, tmp_path):
        with refused("keep_ranges", where="meta/views/forged.json", fix="select") as caught:
            EpisodeArrays(forge(root, {"keep_ranges": place}))
        assert SECRET not in str(caught.value)
    program = (
        f"import os; os.chdir({str(root.parent)!r}); from understudy_kit.cli.main import "
        "main; main(['select', 'd'])"
    )
    forge(root, {"keep_ranges": str(tmp_path / "pipe")})
    listed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "#seed" in listed.stdout, listed


def test_a_copy_that_is_a_link_to_another_file_is_not_shown(root: Path, tmp_path: Path) -> None:
    places(root, tmp_path)
    name = "0" * 64 + ".json"
    os.makedirs(root / "meta/views/files", exist_ok=True)
    for target in (tmp_path / "secret.json", tmp_path / "pipe", Path("/dev/zero")):
        (root / "meta/views/files" / name).unlink(missing_ok=True)
        (root / "meta/views/files" / name).symlink_to(target)
        with refused(where=name, fix="") as caught:
            EpisodeArrays(forge(root, {"keep_ranges": name}))
        assert SECRET not in str(caught.value)


SPECIAL = [
    "meta/info.json",
    "meta/tasks.parquet",
    "meta/episodes/chunk-000/file-000.parquet",
    "meta/stats.json",
]


@pytest.mark.parametrize(
    "path", [*SPECIAL, "data/chunk-000/file-000.parquet", "meta/views/seed.json"]
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_special_files_in_a_dataset_are_refused(root: Path, path: str, kind: str) -> None:
    (root / path).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(root / path)
    else:
        (root / path).symlink_to("/dev/zero")
    with refused(where="", fix="") as caught:
        data = EpisodeArrays(f"{root}#seed")
        assert data.catalog.stats is not None
        np.asarray(data[0])
    assert "neither" in caught.value.what
    assert path in str(caught.value.where)
