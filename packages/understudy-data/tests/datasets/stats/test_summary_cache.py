"""Cached summaries: used while complete and while all inputs are unchanged."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DRAFT_SUFFIX
from understudy_base.testing.refusals import warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.stats import norm_heads, summary
from understudy_data.datasets.stats.norm_heads import HeadMember, compute_normalization
from understudy_data.storage import mapped_tables
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import Spec, edit_json, write_dataset, write_parquet
from understudy_data.testing.servers import RangeServer, folder

ACTION = "action"
STATE = "observation.state"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(
        tmp_path / "d", Spec(version="v2.1", lengths=(6, 9, 30), cameras=(), action_dim=3)
    )
    return tmp_path / "d"


def made(
    root: Path | Catalog, cache: Path | None, episodes: tuple[int, ...] = (0, 1, 2), **choice: Any
) -> dict[str, Any]:
    chunk = choice.get("chunk", 4)
    delta = choice.get("delta", (0,))
    names = choice.get("names")
    windows = {ACTION: [i / 10 for i in range(chunk)]}
    data = EpisodeDataset(
        root,
        windows,
        episodes=episodes,
        keys=[ACTION, STATE],
        names=names,
        **choice.get("select", {}),
    )
    return compute_normalization([HeadMember(data, "x", delta)], "quantile", chunk, cache)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the datasets that were read, in turn."""
    seen: list[str] = []
    whole = norm_heads.summarize

    def noted(data: EpisodeDataset, *rest: Any) -> Any:
        seen.append(data.name)
        return whole(data, *rest)

    monkeypatch.setattr(norm_heads, "summarize", noted)
    return seen


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "statistics").glob("*"))


def test_cache_second_load_reads_no_rows_and_gives_same_bits(
    root: Path, tmp_path: Path, reads: list[str]
) -> None:
    plain = made(root, None)
    assert made(root, tmp_path / "c") == plain
    assert made(root, tmp_path / "c") == plain
    assert reads == ["d", "d"]
    assert [path.suffix for path in kept(tmp_path / "c")] == [".npz"]
    made(root, None)
    assert len(reads) == 3


def test_cache_validation_parts_are_stored_without_rows(
    root: Path, tmp_path: Path, reads: list[str]
) -> None:
    data, held = (EpisodeDataset(root, episodes=[e], keys=[ACTION, STATE]) for e in (0, 2))
    for _ in range(2):
        compute_normalization([HeadMember(data, "x")], "mean_std", 1, tmp_path / "c", [held])
    assert len(reads) == 2
    for _ in range(2):  # kept without rows, that serves no pool
        compute_normalization([HeadMember(held, "x")], "mean_std", 1, tmp_path / "c")
    assert len(reads) == 3


def test_cache_one_source_more_reads_that_one(root: Path, tmp_path: Path, reads: list[str]) -> None:
    shutil.copytree(root, tmp_path / "e")
    members = [
        HeadMember(EpisodeDataset(each, keys=[ACTION, STATE]), "x")
        for each in (root, tmp_path / "e")
    ]
    compute_normalization(members[:1], "mean_std", 1, tmp_path / "c")
    compute_normalization(members, "mean_std", 1, tmp_path / "c")
    assert reads == ["d", "e"]


def test_small_sources_of_a_mixture_share_files(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same bits as without a cache; a changed source is read again, with few others."""
    monkeypatch.setattr(mapped_tables, "GROUP", 2)
    roots = [tmp_path / f"s{number}" for number in range(12)]
    for number, one in enumerate(roots):
        write_dataset(one, Spec(version="v2.1", lengths=(6, 9 + number), cameras=(), action_dim=3))

    def pooled(cache: Path | None) -> dict[str, Any]:
        windows = {ACTION: [0, 0.1]}
        parts = [
            [EpisodeDataset(one, windows, episodes=[e], keys=[ACTION, STATE]) for e in (0, 1)]
            for one in roots
        ]
        members = [HeadMember(part[1], "x", (0,)) for part in parts]
        return compute_normalization(members, "quantile", 2, cache, [part[0] for part in parts])

    plain = pooled(None)
    reads.clear()
    assert pooled(tmp_path / "c") == plain
    assert len(reads) == 24
    files = [path for path in kept(tmp_path / "c") if path.suffix != ".lock"]
    assert 1 < len(files) <= 16
    assert ".npz" not in {path.suffix for path in files}
    assert pooled(tmp_path / "c") == plain
    assert len(reads) == 24
    data = roots[3] / "data/chunk-000/episode_000001.parquet"
    table = pq.read_table(data)
    at = table.schema.get_field_index(ACTION)
    write_parquet(data, [table.set_column(at, ACTION, table[ACTION].combine_chunks()[::-1])])
    pooled(tmp_path / "c")
    assert "s3" in reads[24:]
    assert len(reads) < 24 + 24
    shutil.rmtree(roots.pop())
    before = len(reads)
    pooled(tmp_path / "c")
    assert len(reads) - before < 12


def test_small_sources_have_their_own_files_on_a_network_file_system(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in the user's folder, which the next node sees, too."""
    monkeypatch.setattr(mapped_tables, "GROUP", 1)
    monkeypatch.setattr(summary, "is_network", lambda path: True)
    roots = [tmp_path / f"s{number}" for number in range(3)]
    for number, one in enumerate(roots):
        write_dataset(one, Spec(version="v2.1", lengths=(6, 9 + number), cameras=(), action_dim=3))
    for _ in range(2):
        members = [HeadMember(EpisodeDataset(one, keys=[ACTION, STATE]), "x") for one in roots]
        compute_normalization(members, "mean_std", 1, tmp_path / "c")
    assert len(reads) == 3
    assert [path.suffix for path in kept(tmp_path / "c")] == [".npz"] * 3


@pytest.mark.parametrize(
    "other",
    [
        {"episodes": (0, 2)},
        {"chunk": 5},
        {"delta": ()},
        {"delta": (1,)},
        {"select": {"drop_n_last_frames": 1}},
        {"names": {STATE: "action", "action": "observation.state"}},
    ],
)
def test_cache_whatever_it_follows_from_is_another_entry(
    root: Path, tmp_path: Path, reads: list[str], other: dict[str, Any]
) -> None:
    made(root, tmp_path / "c")
    assert made(root, tmp_path / "c", **other) == made(root, None, **other)
    assert len(kept(tmp_path / "c")) == 2
    assert len(reads) == 3


def test_cache_a_window_that_ends_elsewhere_is_another_entry(root: Path, tmp_path: Path) -> None:
    """The same frames are samples; behind them the windows see more, or are padded."""
    rule = {"keep_ranges": {2: [[0, 20]]}, "keep_rule": "start"}
    a = made(root, tmp_path / "c", (2,), select=rule)
    b = made(root, tmp_path / "c", (2,), select={"drop_n_last_frames": 10})
    assert a == made(root, None, (2,), select=rule)
    assert a != b


def of_the_same_size(path: Path, new: Path) -> bytes:
    """A data file with its actions in another sequence, as long as before to the byte; left in
    `new`, too.
    """
    table = pq.read_table(path)
    at = table.schema.get_field_index(ACTION)
    for by in range(1, len(table)):
        rows = pa.array(np.roll(np.arange(len(table)), by))
        write_parquet(
            new, [table.set_column(at, ACTION, table[ACTION].combine_chunks().take(rows))]
        )
        if new.stat().st_size == path.stat().st_size:
            return new.read_bytes()
    raise AssertionError("no such file")


@pytest.mark.parametrize("how", ["replaced", "in place", "in place, its old time set again"])
def test_cache_a_changed_file_is_read_again(root: Path, tmp_path: Path, how: str) -> None:
    """Of the same size, always."""
    cache = tmp_path / "c"
    path = root / "data/chunk-001/episode_000002.parquet"
    before = made(root, cache)
    there = path.stat()
    other = of_the_same_size(path, tmp_path / "new")
    if how == "replaced":
        os.replace(tmp_path / "new", path)
    else:
        path.write_bytes(other)
    if how.endswith("again"):
        os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))
    after = made(root, cache)
    assert after == made(root, None)
    assert after != before


def test_cache_a_dataset_elsewhere_goes_by_what_its_server_says(
    root: Path, tmp_path: Path, reads: list[str]
) -> None:
    """A second process, as it were: opened anew. The etag is a hash of the content."""
    path = "/d/data/chunk-001/episode_000002.parquet"
    files = folder(root, "/d")
    with RangeServer(files) as server:

        def again() -> dict[str, Any]:
            remote = RemoteOptions(
                cache=str(tmp_path / "bytes"),
                retry=RetryPolicy(deadline=20.0, initial_backoff=0.001),
            )
            return made(Catalog.open(f"{server.url}/d", remote), tmp_path / "c")

        before = again()
        assert again() == before == made(root, None)
        assert reads == ["d", "d"]  # elsewhere once, here once
        files[path] = of_the_same_size(root / path[3:], tmp_path / "new")
        assert again() != before
        assert len(reads) == 3


def test_cache_metadata_that_says_otherwise_is_another_entry(root: Path, tmp_path: Path) -> None:
    before = made(root, tmp_path / "c")
    edit_json(
        root / "meta/info.json", lambda info: info["features"][ACTION].update(dtype="float64")
    )
    assert made(root, tmp_path / "c") == made(root, None)
    assert len(kept(tmp_path / "c")) == 2
    assert before["heads"] == ["x"]


def test_cache_torn_and_foreign_files_are_computed_again(
    root: Path, tmp_path: Path, reads: list[str]
) -> None:
    cache = tmp_path / "c"
    plain = made(root, cache)
    path = kept(cache)[0]
    whole = path.read_bytes()
    made(root, cache, (0, 1))
    foreign = next(other for other in kept(cache) if other != path).read_bytes()
    rng = np.random.default_rng(0)
    broken = [whole[: int(n)] for n in [*np.linspace(0, len(whole) - 1, 12)]]
    broken += [
        foreign,
        b"not an archive",
        whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
    ]
    for _ in range(25):  # a flipped byte anywhere
        at = int(rng.integers(len(whole)))
        broken.append(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
    for content in broken:
        path.write_bytes(content)
        assert made(root, cache) == plain
    path.unlink()
    path.mkdir()
    with warned(path):
        assert made(root, cache) == plain
    assert len(reads) > 15 + 10  # some bytes of an archive mean nothing


def test_cache_ignores_drafts_of_a_killed_writer(
    root: Path, tmp_path: Path, reads: list[str]
) -> None:
    """Killed at the last instant before the rename: the draft is there, the entry is not."""
    cache = tmp_path / "c"
    pid = os.fork()
    if pid == 0:
        os.replace = lambda *_: os._exit(9)  # type: ignore[assignment]
        try:
            made(root, cache)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert [path.suffix for path in kept(cache)] == [DRAFT_SUFFIX]
    plain = made(root, cache)
    assert made(root, cache) == plain
    assert len(reads) == 1


def test_cache_a_file_that_changes_while_it_is_read_is_not_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = norm_heads.summarize

    def meddled(data: EpisodeDataset, *rest: Any) -> Any:
        found = whole(data, *rest)
        os.utime(root / "data/chunk-000/episode_000001.parquet")
        return found

    monkeypatch.setattr(norm_heads, "summarize", meddled)
    made(root, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_cache_fine_rows_serve_a_larger_pool_and_coarse_ones_no_smaller(
    root: Path, tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(root, tmp_path / "e")
    data = [EpisodeDataset(each, keys=[ACTION, STATE]) for each in (root, tmp_path / "e")]
    one = [HeadMember(data[0], "x")]
    both = [HeadMember(each, "x") for each in data]
    monkeypatch.setattr(summary, "ROWS", 50)
    plain = [compute_normalization(pool, "quantile", 1) for pool in (one, both)]
    reads.clear()
    cache = tmp_path / "c"
    assert [compute_normalization(pool, "quantile", 1, cache) for pool in (one, both)] == plain
    assert reads == ["d", "e"]
    shutil.rmtree(cache)
    reads.clear()
    assert [compute_normalization(pool, "quantile", 1, cache) for pool in (both, one)] == plain[
        ::-1
    ]
    assert reads == ["d", "e", "d"]


def test_cache_a_folder_that_cannot_be_written_costs_a_warning(root: Path, tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    with warned(tmp_path / "c", os.strerror(errno.ENOTDIR)):
        assert made(root, tmp_path / "c") == made(root, None)


def test_cache_evicts_least_recently_used(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "c"
    made(root, cache, (0,))
    first = kept(cache)[0]
    made(root, cache, (0, 1))
    second = next(path for path in kept(cache) if path != first)
    os.utime(first, ns=(1, 1))
    os.utime(second, ns=(2, 2))
    made(root, cache, (0,))  # used again: now the younger
    monkeypatch.setattr(summary, "BUDGET", first.stat().st_size + second.stat().st_size + 100)
    made(root, cache, (1,))
    assert first in kept(cache)
    assert second not in kept(cache)
    monkeypatch.setattr(summary, "BUDGET", 0)
    made(root, cache, (2,))
    assert len(kept(cache)) == 1
