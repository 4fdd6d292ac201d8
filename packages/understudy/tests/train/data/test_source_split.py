"""The split of one source, under any selection: each side compared with sets of frames."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.config.train import TrainConfig
from understudy.testing.runs import tiny_config
from understudy.train.data.run_data import open_data
from understudy_base import DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.selection.select import split_episodes
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import complete, override

LENGTHS = (5, 3, 6, 4, 7, 3, 5, 6, 4, 5)
CHUNK = 3
ALL = frozenset(range(len(LENGTHS)))
TASKS_OF = np.array([(e, task) for e in sorted(ALL) for task in ((0, 1) if e % 2 else (e % 3,))])
"""Rows [episode, task] of the written dataset: an odd episode has two tasks."""
KEEPS: dict[str, dict[int, list[list[int]]]] = {
    "": {},
    "most": {e: [[0, 3], [3, 5]] for e in ALL - {3, 6}},
    "few": {0: [[1, 4]], 4: [[0, 3], [4, 7]], 5: [], 7: [[0, 6]], 9: [[2, 5]]},
    "none": {e: [] for e in ALL} | {2: [[0, 1]]},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts")
    write_dataset(path / "d", Spec(lengths=LENGTHS, cameras=()))
    for name, ranges in KEEPS.items():
        (path / f"{name}.json").write_text(json.dumps({str(e): own for e, own in ranges.items()}))
    return path


def frames_of(part: EpisodeDataset | None) -> set[tuple[int, int]]:
    rows = [] if part is None else part.segments.tolist()
    return {(e, f) for e, start, stop in rows for f in range(start, stop)}


def usable(episode: int, source: dict[str, Any]) -> set[tuple[int, int]]:
    """Samples of an episode, by the words of the settings."""
    length = LENGTHS[episode]
    kept = KEEPS[source["keep"]]
    found = set()
    for frame in range(source["drop_n_first_frames"], length - source["drop_n_last_frames"]):
        seen = range(frame, frame + CHUNK) if source["keep_rule"] == "window" else [frame]
        merged = {
            f for start, stop in kept.get(episode, []) for f in range(start, min(stop, length))
        }
        if not source["keep"] or all(f in merged for f in seen):
            found.add((episode, frame))
    return found


SOURCES = st.fixed_dictionaries(
    {
        "exclude_episodes": st.sets(st.sampled_from(sorted(ALL)), max_size=3),
        "val": st.sampled_from([0.0, 0.1, 0.3, 0.9])
        | st.sets(st.sampled_from(sorted(ALL)), min_size=1, max_size=3),
        "more": st.none() | st.sets(st.sampled_from(sorted(ALL)), max_size=6),
        "drop_n_first_frames": st.integers(0, 2),
        "drop_n_last_frames": st.integers(0, 2),
        "keep": st.sampled_from(["", "", *KEEPS]),
        "keep_rule": st.sampled_from(["window", "start"]),
    }
)


@given(source=SOURCES)
def test_both_sides_are_what_was_asked_for_and_share_no_episode(
    root: Path, source: dict[str, Any]
) -> None:
    """Validation episodes by a list or a fraction, of all episodes or some, whatever else is left
    out of them.
    """
    val = source["val"]
    listed = val if isinstance(val, set) else set()
    excluded = source["exclude_episodes"] - listed
    chosen = set() if source["more"] is None else (source["more"] | listed) - excluded
    own = (chosen or ALL) - excluded
    samples = {e: usable(e, source) for e in own}
    there = {e for e in own if samples[e]}
    if listed:
        held = listed & there
        trained = there - listed
        possible = bool(held and trained)
    elif val and len(there) >= 2:
        trained, held = (
            set(ids.tolist()) for ids in split_episodes(sorted(there), val, tasks=TASKS_OF)
        )
        possible = bool(trained and held)
        assert possible
    else:
        held = set()
        trained = there
        possible = bool(there) and not val
    config = tiny_config(root / "d", root / "run")
    data = replace(
        config.data,
        chunk_size=CHUNK,
        episodes=tuple(chosen),
        exclude_episodes=tuple(excluded),
        val_episodes=tuple(listed),
        val_fraction=0.0 if listed else val,
        keep_ranges=str(root / f"{source['keep']}.json") if source["keep"] else "",
        **{
            name: source[name]
            for name in ("keep_rule", "drop_n_first_frames", "drop_n_last_frames")
        },
    )
    config = complete(override(config, data=data, val={} if listed or val else {"every": 0}))
    if not possible:
        with pytest.raises(DatasetError):
            open_data(config)
        return
    found = open_data(config)
    training = frames_of(found.training[0])
    held_out = frames_of(found.validation[0])
    assert not {e for e, _ in training} & {e for e, _ in held_out}
    assert training == set().union(*(samples[e] for e in trained))
    assert held_out == set().union(*(samples[e] for e in held))


def held_out(config: TrainConfig, recorded: list[dict[str, Any]] | None = None) -> list[list[int]]:
    return [
        part.episodes.tolist()
        for part in open_data(config, recorded).validation
        if part is not None
    ]


def test_validation_spreads_over_tasks_and_a_run_keeps_its_own(tmp_path: Path) -> None:
    """All episodes of one task (5 and 11) hash to validation, until the dataset has a third of
    them.
    """
    ids = tuple(range(3, 15))
    longer = tuple(range(3, 18))
    plain = split_episodes(ids, 0.3)[1].tolist()
    assert {5, 11} <= set(plain)
    write_dataset(root := tmp_path / "d", Spec(lengths=(4,) * len(ids), ids=ids, cameras=()))
    config = complete(tiny_config(root, tmp_path / "run"))
    data = open_data(config)
    [own] = held_out(config)
    assert (len(own), len({5, 11} & set(own))) == (len(plain), 1)
    shutil.rmtree(root)
    write_dataset(root, Spec(lengths=(4,) * len(longer), ids=longer, cameras=()))
    assert held_out(config, data.entries()) == [own]
    assert {5, 11} <= set(held_out(config)[0])  # a new run on the longer dataset


def test_sources_of_one_dataset_hold_out_the_same_episodes(tmp_path: Path) -> None:
    """Where an exchange would give each its own validation episodes, the split is that of the ids
    alone.
    """
    ids = tuple(range(3, 15))
    write_dataset(root := tmp_path / "d", Spec(lengths=(4,) * len(ids), ids=ids, cameras=()))
    (tmp_path / "link").symlink_to(root)
    config = complete(tiny_config(root, tmp_path / "run"))
    whole = replace(config.data.mixed()[0], name="all")
    few = replace(whole, root=str(tmp_path / "link"), name="few", episodes=tuple(range(4, 11)))
    both = complete(override(config, data=replace(config.data, root="", sources=(whole, few))))
    plain = split_episodes(ids, 0.3)[1].tolist()
    assert held_out(both) == [plain, [e for e in plain if e in range(4, 11)]]
