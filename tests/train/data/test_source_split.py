"""The split of one source, under any selection: each side compared with sets of frames."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets import Spec, write_dataset
from support.runs import tiny_config
from understudy.config.schema import complete, override
from understudy.data.dataset import EpisodeDataset
from understudy.data.selection.select import split_episodes
from understudy.errors import DatasetError
from understudy.train.data.run_data import open_data

LENGTHS = (5, 3, 6, 4, 7, 3, 5, 6, 4, 5)
CHUNK = 3
ALL = frozenset(range(len(LENGTHS)))
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
    length, kept = LENGTHS[episode], KEEPS[source["keep"]]
    found = set()
    for frame in range(source["drop_n_first_frames"], length - source["drop_n_last_frames"]):
        seen = range(frame, frame + CHUNK) if source["keep_rule"] == "window" else [frame]
        merged = {f for start, stop in kept.get(episode, []) for f in range(start, min(stop, length))}
        if not source["keep"] or all(f in merged for f in seen):
            found.add((episode, frame))
    return found


SOURCES = st.fixed_dictionaries(
    {
        "exclude_episodes": st.sets(st.sampled_from(sorted(ALL)), max_size=3),
        "val": st.sampled_from([0.0, 0.1, 0.3, 0.9]) | st.sets(st.sampled_from(sorted(ALL)), min_size=1, max_size=3),
        "more": st.none() | st.sets(st.sampled_from(sorted(ALL)), max_size=6),
        "drop_n_first_frames": st.integers(0, 2),
        "drop_n_last_frames": st.integers(0, 2),
        "keep": st.sampled_from(["", "", *KEEPS]),
        "keep_rule": st.sampled_from(["window", "start"]),
    }
)


@given(source=SOURCES)
def test_both_sides_are_what_was_asked_for_and_share_no_episode(root: Path, source: dict[str, Any]) -> None:
    """Validation episodes by a list or a fraction, of all episodes or some, whatever else is left out of them."""
    val = source["val"]
    listed = val if isinstance(val, set) else set()
    excluded = source["exclude_episodes"] - listed
    chosen = set() if source["more"] is None else (source["more"] | listed) - excluded
    own = (chosen or ALL) - excluded
    samples = {e: usable(e, source) for e in own}
    there = {e for e in own if samples[e]}
    if listed:
        held, trained = listed & there, there - listed
        possible = bool(held and trained)
    elif val and len(there) >= 2:
        trained, held = (set(ids.tolist()) for ids in split_episodes(sorted(there), val))
        possible = bool(trained and held)
        assert possible
    else:
        held, trained = set(), there
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
        **{name: source[name] for name in ("keep_rule", "drop_n_first_frames", "drop_n_last_frames")},
    )
    config = complete(override(config, data=data, val={} if listed or val else {"every": 0}))
    if not possible:
        with pytest.raises(DatasetError):
            open_data(config)
        return
    found = open_data(config)
    training, held_out = frames_of(found.training[0]), frames_of(found.validation[0])
    assert not {e for e, _ in training} & {e for e, _ in held_out}
    assert training == set().union(*(samples[e] for e in trained))
    assert held_out == set().union(*(samples[e] for e in held))
