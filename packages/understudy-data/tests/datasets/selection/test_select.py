"""Selection: exactly the frames of a reference with sets, stable splits, matched keep-ranges."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.selection.keep_ranges import KeepReport
from understudy_data.datasets.selection.select import SelectedFrames, Selection, split_episodes
from understudy_data.testing.datasets import Spec, write_dataset

LENGTHS = (6, 9, 4, 0, 12)
IDS = (1, 2, 5, 6, 9)


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Catalog]:
    """The same episodes in both formats, with DROID's two text columns in the episode metadata."""
    root = tmp_path_factory.mktemp("select")
    for version in ("v2.1", "v3.0"):
        spec = Spec(version=version, lengths=LENGTHS, ids=IDS, cameras=(), recorded_as=True)
        write_dataset(root / version, spec)
    return {version: Catalog.open(root / version) for version in ("v2.1", "v3.0")}


@pytest.fixture(scope="module")
def catalog(catalogs: dict[str, Catalog]) -> Catalog:
    return catalogs["v3.0"]


def choose(catalog: Catalog, reach: tuple[int, int] = (0, 0), **options: Any) -> SelectedFrames:
    return Selection(**options).apply(catalog, reach)


def frames(segments: np.ndarray) -> list[tuple[int, int]]:
    return [(e, f) for e, start, stop in segments.tolist() for f in range(start, stop)]


ranges = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted).map(list), max_size=4
)


@given(
    episodes=st.none() | st.lists(st.sampled_from(IDS), min_size=1),
    exclude=st.lists(st.sampled_from(IDS), max_size=2),
    first=st.integers(0, 4),
    last=st.integers(0, 4),
    keep=st.none() | st.dictionaries(st.sampled_from(IDS), ranges, min_size=1),
    rule=st.sampled_from(["window", "start"]),
    back=st.integers(0, 3),
    ahead=st.integers(0, 3),
)
def test_select_every_kept_frame_and_no_other(
    catalog: Catalog,
    episodes: list[int] | None,
    exclude: list[int],
    first: int,
    last: int,
    keep: dict[int, list[list[int]]] | None,
    rule: str,
    back: int,
    ahead: int,
) -> None:
    want = []
    for episode, length in zip(IDS, LENGTHS):
        if (episodes is not None and episode not in episodes) or episode in exclude:
            continue
        held = {
            f
            for start, stop in (keep or {}).get(episode, [])
            for f in range(start, min(stop, length))
        }
        for frame in range(first, length - last):
            seen = range(frame - back, frame + ahead + 1) if rule == "window" else [frame]
            if keep is None or all(f in held for f in seen):
                want.append((episode, frame))
    options: dict[str, Any] = {
        "episodes": episodes,
        "exclude_episodes": exclude,
        "drop_n_first_frames": first,
        "drop_n_last_frames": last,
    }
    options |= {"keep_ranges": keep, "keep_rule": rule, "reach": (back, ahead)}
    if not want:
        with pytest.raises(DatasetError):
            choose(catalog, **options)
        return
    got = choose(catalog, **options)
    assert frames(got.segments) == want
    assert got.segments.dtype == np.int64
    for (episode, _, stop), bound in zip(got.segments.tolist(), got.stop.tolist()):
        length = LENGTHS[IDS.index(episode)]
        if keep is None or rule == "window":
            assert bound == length
        else:
            assert stop <= bound <= length
            assert bound == length or (
                bound not in {f for a, b in keep[episode] for f in range(a, b)}
            )


def test_select_storage_order_whatever_is_asked(catalog: Catalog) -> None:
    assert choose(catalog, episodes=[9, 1, 9, 5]).segments.tolist() == [
        [1, 0, 6],
        [5, 0, 4],
        [9, 0, 12],
    ]
    assert choose(catalog, episodes=np.asarray([2])).segments.tolist() == [[2, 0, 9]]
    assert choose(catalog, episodes=range(1, 3)).segments[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"episodes": [3]}, ["no episode 3", "1, 2, 5, 6, 9"]),
        ({"exclude_episodes": [77]}, ["no episode 77"]),
        ({"episodes": []}, ["holds no episode"]),
        ({"exclude_episodes": IDS}, ["holds no episode"]),
        ({"episodes": ["one"]}, ["'one'"]),
        ({"episodes": [1.5]}, ["1.5"]),
        ({"episodes": 3}, ["episodes is 3", "episodes=[0, 1]"]),
        ({"exclude_episodes": "12"}, ["exclude_episodes is '12'"]),
        ({"drop_n_first_frames": -1}, ["drop_n_first_frames", "-1"]),
        ({"drop_n_last_frames": 1.0}, ["drop_n_last_frames", "1.0"]),
        ({"drop_n_first_frames": 8, "drop_n_last_frames": 4}, ["no frame is left", "8", "4"]),
        ({"keep_ranges": {1: [[0, 2]]}, "keep_rule": "any"}, ["'any'"]),
        ({"keep_ranges": {1: [[0, 2]]}, "reach": (1, 1)}, ["no frame is left", "window"]),
        ({"keep_ranges": {1: [[2, 1]]}}, ["[2, 1]"]),
        ({"keep_ranges": {1: [[-1, 1]]}}, ["-1"]),
        ({"keep_ranges": {1: [0, 4]}}, ["[0, 4]"]),
        ({"keep_ranges": {1: [[0, 4.0]]}}, ["4.0"]),
        ({"keep_ranges": {1: "all"}}, ["all"]),
        ({"keep_ranges": {1: [[0, 2]], "1": [[1, 3]]}}, ["1 and '1' are both episode 1"]),
        ({"keep_ranges": {1: [[0, 4]]}, "episodes": [2]}, ["keeps no frame"]),
    ],
)
def test_select_refuses_bad_selections(
    catalog: Catalog, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(DatasetError) as caught:
        choose(catalog, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_select_keys_of_droid(catalogs: dict[str, Catalog], tmp_path: Path, version: str) -> None:
    """`<recording_folderpath>--<file_path>`, out of the episode metadata of either format."""
    content = {
        "gs://lab/day-1--/data/run-1.h5": [[2, 4]],
        "gs://lab/day-4--/data/run-4.h5": [[0, 99]],
        "x--y": [[0, 1]],
    }
    path = tmp_path / "keep.json"
    path.write_text(json.dumps(content))
    got = choose(catalogs[version], keep_ranges=path)
    assert got.segments.tolist() == [[2, 2, 4], [9, 0, 12]]
    assert got.keep_report == KeepReport(
        where=str(path),
        keys=3,
        matched=2,
        unmatched=("x--y",),
        empty=0,
        first_empty=(),
        episodes=4,
        unnamed=2,
        first_unnamed=("gs://lab/day-0--/data/run-0.h5", "gs://lab/day-2--/data/run-2.h5"),
        cut=1,
        frames=31,
        in_ranges=14,
        samples=14,
    )
    assert got.notes == tuple(got.keep_report.lines())
    assert (
        "2 of 3 keys match an episode of this dataset, 2 of its 4 episodes have a key"
        in got.notes[0]
    )
    assert "14 of 31 requested frames are in ranges (45.2%), 14 of them are samples" in got.notes[1]
    assert got.notes[2].endswith("1 keys match no episode of this dataset: 'x--y'")
    assert got.notes[4].endswith("1 ranges end after their episode and were cut there")
    single = choose(catalogs[version], keep_ranges={"/data/run-2.h5": [[1, 3]]})
    assert single.segments.tolist() == [[5, 1, 3]]


def test_select_keys_out_of_the_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(3, 4, 5), cameras=(), rich=True))
    got = choose(Catalog.open(tmp_path / "d"), keep_ranges={"episode 2, frame 0 é": [[1, 3]]})
    assert got.segments.tolist() == [[2, 1, 3]]


def test_select_text_that_episodes_share_names_none(tmp_path: Path) -> None:
    """Every episode of this dataset was recorded in the same folder: the folder alone is no key."""
    write_dataset(
        tmp_path / "d", Spec(version="v2.1", lengths=(3, 4), cameras=(), recorded_as=True)
    )
    path = tmp_path / "d/meta/episodes.jsonl"
    path.write_text(path.read_text().replace("day-1", "day-0"))
    catalog = Catalog.open(tmp_path / "d")
    with refused(1, "'gs://lab/day-0'", where="keep_ranges"):
        choose(catalog, keep_ranges={"gs://lab/day-0": [[0, 2]]})
    assert choose(
        catalog, keep_ranges={"gs://lab/day-0--/data/run-1.h5": [[0, 2]]}
    ).segments.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_select_no_match_shows_both_sides(catalogs: dict[str, Catalog], version: str) -> None:
    with pytest.raises(DatasetError) as caught:
        choose(catalogs[version], keep_ranges={"gs://elsewhere--/run.h5": [[0, 5]]})
    assert "gs://elsewhere--/run.h5" in str(caught.value)
    assert "gs://lab/day-0--/data/run-0.h5" in str(caught.value)
    with pytest.raises(DatasetError) as caught:
        choose(catalogs[version], keep_ranges={"77": [[0, 5]], 78: [[0, 5]]})
    assert "'77', 78" in str(caught.value)
    assert "'1', '2', '5'" in str(caught.value)


def test_select_ids_as_keys(catalog: Catalog) -> None:
    for keep in ({"2": [[0, 1]]}, {2: [[0, 1]]}, {2: [(0, 1)]}):
        assert choose(catalog, keep_ranges=keep).segments.tolist() == [[2, 0, 1]]


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "\x00"])
def test_select_broken_keep_files(catalog: Catalog, tmp_path: Path, text: str) -> None:
    path = tmp_path / "keep.json"
    path.write_text(text)
    with refused(where="keep.json"):
        choose(catalog, keep_ranges=path)
    with refused(where="nowhere.json"):
        choose(catalog, keep_ranges=str(tmp_path / "nowhere.json"))


def test_select_a_key_twice_in_a_file_loses_nothing(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "keep.json"
    path.write_text('{"1": [[0, 2]], "2": [[0, 1]], "1": [[3, 4]]}')
    with refused("'1'", where="keep.json"):
        choose(catalog, keep_ranges=path)


def test_select_whole_numbers_of_numpy_are_whole_numbers(catalog: Catalog) -> None:
    assert np.array_equal(
        choose(catalog, drop_n_first_frames=np.int64(1)).segments,
        choose(catalog, drop_n_first_frames=1).segments,
    )  # type: ignore[arg-type]


# The split


@given(
    st.sets(st.integers(0, 10_000), min_size=2, max_size=60),
    st.floats(0.01, 0.99),
    st.integers(0, 99),
)
def test_select_split_is_a_partition(ids: set[int], fraction: float, seed: int) -> None:
    train, held = split_episodes(sorted(ids), fraction, seed)
    assert sorted([*train.tolist(), *held.tolist()]) == sorted(ids)
    assert len(train) >= 1
    assert len(held) >= 1
    again = split_episodes(np.asarray(sorted(ids, reverse=True)), fraction, seed)
    assert np.array_equal(train, again[0])
    assert np.array_equal(held, again[1])


@given(st.integers(10, 400), st.integers(1, 400), st.integers(0, 99))
def test_select_added_episodes_move_none(before: int, added: int, seed: int) -> None:
    """Validation episodes stay so when the dataset grows, but for one that only makes the split
    non-empty.
    """
    _, held = split_episodes(np.arange(before), 0.3, seed)
    _, later = split_episodes(np.arange(before + added), 0.3, seed)
    old = {e for e in later.tolist() if e < before}
    assert len(old ^ set(held.tolist())) <= 1


def test_select_split_has_its_size_and_depends_on_the_seed() -> None:
    _, held = split_episodes(np.arange(20_000), 0.1)
    assert abs(len(held) - 2000) < 200  # 4.7 standard deviations
    _, other = split_episodes(np.arange(20_000), 0.1, seed=1)
    assert abs(np.intersect1d(held, other).size - 200) < 70


def test_select_split_limits() -> None:
    train, held = split_episodes([3, 1, 2], 0.0)
    assert (train.tolist(), held.tolist()) == ([1, 2, 3], [])
    for fraction in (-0.1, 1.0, float("nan")):
        with refused("fraction", fraction):
            split_episodes([1, 2], fraction)
    with refused(1, "episode", fix="fraction"):
        split_episodes([1], 0.5)
    assert (
        split_episodes(np.arange(8), 0.25, seed=0)[1].tolist()
        == split_episodes(np.arange(8), 0.25)[1].tolist()
    )


def test_select_reports_frames_in_ranges_without_samples(catalog: Catalog) -> None:
    keep = {1: [[0, 4]], 2: [], 9: [[0, 2], [1, 5], [8, 12]], 77: [[0, 1]]}
    got = choose(
        catalog, keep_ranges=keep, reach=(0, 2), exclude_episodes=[1], drop_n_last_frames=1
    )
    assert got.segments.tolist() == [[9, 0, 3], [9, 8, 10]]
    assert got.keep_report is not None
    assert (got.keep_report.frames, got.keep_report.in_ranges, got.keep_report.samples) == (
        25,
        9,
        5,
    )
    assert (
        got.keep_report.matched,
        got.keep_report.unmatched,
        got.keep_report.empty,
        got.keep_report.first_empty,
    ) == (
        3,
        ("77",),
        1,
        ("2",),
    )
    assert (got.keep_report.episodes, got.keep_report.unnamed, got.keep_report.first_unnamed) == (
        4,
        1,
        ("5",),
    )
    assert choose(catalog).keep_report is None


def test_select_ranges_that_are_all_empty_say_so(catalog: Catalog) -> None:
    with refused("keeps", "'2', '5'", "'1', '9'", where="keep_ranges"):
        choose(catalog, keep_ranges={1: [], 9: []})


def test_select_paths_inside_droid_keys(tmp_path: Path) -> None:
    """NVIDIA's conversion has the path of a DROID recording as `episode_id`, and not the text that
    its keys have.
    """
    write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(40,) * 4, cameras=()))
    path = tmp_path / "d/meta/episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = [
        "BVL/success/2024-02-02/run",
        "AUTO/success/2024-02-02/run",
        "/IRIS/success/2024-02-02/run/",
        "run",
    ]
    for line, name in zip(lines, names):
        line["episode_id"] = name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def key(episode: str, root: str = "gs://xembodiment_data/r2d2/r2d2-data-full") -> str:
        return f"{root}/{episode}/recordings/MP4--{root}/{episode}/trajectory.h5"

    keep = {
        key("IRIS/success/2024-02-02/run"): [[1, 3]],
        key("BVL/success/2024-02-02/run"): [[2, 9], [20, 24]],
    }
    other = {
        key("RAIL/success/2024-02-02/run"): [[0, 40]],
        "AUTO/success/2024-02-02/run--elsewhere": [[0, 40]],
    }
    got = choose(Catalog.open(tmp_path / "d"), keep_ranges=keep | other)
    assert got.segments.tolist() == [[0, 2, 9], [0, 20, 24], [2, 1, 3]]
    assert got.keep_report is not None
    assert (got.keep_report.matched, got.keep_report.unnamed, set(got.keep_report.unmatched)) == (
        2,
        2,
        set(other),
    )
    with refused(2, repr(names[0]), where="keep_ranges"):
        choose(Catalog.open(tmp_path / "d"), keep_ranges=other)


@pytest.mark.long
def test_select_a_hundred_thousand_long_keys(tmp_path: Path) -> None:
    """DROID's file is as long; only five of its episodes are here. One lookup of each key (no pass
    per episode).
    """
    write_dataset(
        tmp_path / "d", Spec(version="v2.1", lengths=(40,) * 5, cameras=(), recorded_as=True)
    )
    root = "gs://xembodiment_data/r2d2/r2d2-data-full"
    path = tmp_path / "d/meta/episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for k, line in enumerate(lines):
        line["recording_folderpath"] = f"{root}/BVL/success/2024-02-02/run-{k}/recordings/MP4"
        line["file_path"] = f"{root}/BVL/success/2024-02-02/run-{k}/trajectory.h5"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def key(k: int) -> str:
        folder = f"{root}/BVL/success/2024-02-02/run-{k}"
        return f"{folder}/recordings/MP4--{folder}/trajectory.h5"

    (tmp_path / "keep.json").write_text(
        json.dumps({key(k): [[k % 7, 20], [25, 40]] for k in range(3, 95_003)})
    )
    got = choose(Catalog.open(tmp_path / "d"), keep_ranges=tmp_path / "keep.json")
    assert got.segments.tolist() == [[3, 3, 20], [3, 25, 40], [4, 4, 20], [4, 25, 40]]
    assert got.keep_report is not None
    assert (got.keep_report.keys, got.keep_report.matched, got.keep_report.unmatched[0]) == (
        95_000,
        2,
        key(5),
    )
    assert got.keep_report.first_unnamed == (key(0), key(1), key(2))
    (tmp_path / "other.json").write_text(json.dumps({key(k): [[0, 9]] for k in range(10, 95_010)}))
    with refused(95_000, *(repr(key(k)) for k in (0, 1, 2, 10, 11, 12)), where="other.json"):
        choose(Catalog.open(tmp_path / "d"), keep_ranges=tmp_path / "other.json")
