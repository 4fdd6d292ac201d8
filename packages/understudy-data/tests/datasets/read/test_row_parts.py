"""Rows of single episodes of data files on a server: the samples of a folder, for few bytes."""

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from understudy_base import DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read import row_parts, row_tables
from understudy_data.datasets.read import rows as rows_module
from understudy_data.datasets.read.rows import Rows
from understudy_data.storage import remote_store
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import Asked, RangeServer, folder

SPEC = Spec(lengths=(5, 3, 7, 4, 6, 8), cameras=(), rich=True, per_data_file=6)
WINDOWS = {"action": [-0.1, 0.0, 0.2], "index": [0.0, 0.1]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every data file may be mapped; little is fetched when a file is opened."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(row_tables, "LEAST_DATASET", 0)
    monkeypatch.setattr(row_tables, "LEAST_FILE", 0)
    monkeypatch.setattr(remote_store, "HEAD", 512)
    monkeypatch.setattr(row_parts, "_GAP", 64)
    return tmp_path / "cache"


def remote(server: RangeServer, cache: Path, **options: Any) -> EpisodeDataset:
    settings = RemoteOptions(cache=str(cache), retry=RetryPolicy(initial_backoff=0.001))
    return EpisodeDataset(Catalog.open(f"{server.url}/set", settings), **options)


def whole(data: EpisodeDataset) -> dict[str, Any]:
    """All samples, in a batch whose episodes alternate."""
    return data.batch(*data.locate(np.random.default_rng(0).permutation(len(data))))


def same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert list(one) == list(two)
    for key, value in one.items():
        if torch.is_tensor(value):
            assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(two[key])), key
        else:
            assert value == two[key], key


def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse to read whole files."""

    def read(*_: object) -> None:
        raise AssertionError("a whole data file was decoded")

    monkeypatch.setattr(Rows, "read_file", read)
    monkeypatch.setattr(Rows, "_decode_later", lambda self, file: None)
    monkeypatch.setattr(rows_module, "_MOST_TAKEN", float("inf"))


@pytest.mark.parametrize("one_row_group", [False, True])
@pytest.mark.parametrize(
    "omit", [(), ("episode_index",)], ids=["episode_index", "no episode_index"]
)
def test_parts_give_the_samples_of_a_folder(
    one_row_group: bool,
    omit: tuple[str, ...],
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_dataset(
        tmp_path / "set", Spec(**{**vars(SPEC), "one_row_group": one_row_group, "omit": omit})
    )
    plain = whole(EpisodeDataset(tmp_path / "set", WINDOWS))
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache, delta_timestamps=WINDOWS)
        with monkeypatch.context() as patch:
            no_decoding(patch)
            same(whole(data), plain)
            assert len(data._rows.parts) == 6
            data._rows.keep(0, 0)  # each is read again
            same(whole(data), plain)
        data.catalog.files.close()


def test_images_in_rows_are_those_of_the_episode(tmp_path: Path, cache: Path) -> None:
    write_dataset(tmp_path / "set", Spec(**{**vars(SPEC), "images": ("observation.images.top",)}))
    plain = whole(EpisodeDataset(tmp_path / "set"))
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        same(whole(data), plain)
        data.catalog.files.close()


def big(root: Path, group: int | None) -> int:
    """Write one data file of 60 episodes of 40 frames, and return its size."""
    write_dataset(root, Spec(lengths=(40,) * 30, cameras=(), per_data_file=30))
    path = next(root.glob("data/chunk-*/*.parquet"))
    table = pq.read_table(path)
    for name in ("action", "observation.state"):
        width = 2 if name == "action" else 3
        values = np.random.default_rng(0).standard_normal(len(table) * width).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
        table = table.set_column(table.column_names.index(name), name, column)
    noise = np.random.default_rng(1).bytes(len(table) * 1000)
    texts = [noise[i * 1000 : (i + 1) * 1000] for i in range(len(table))]
    pq.write_table(
        table.append_column("unused", pa.array(texts, pa.binary())), path, row_group_size=group
    )
    return path.stat().st_size


@pytest.mark.parametrize(("group", "most"), [(40, 0.25), (None, 0.25)], ids=["groups", "one group"])
def test_an_episode_takes_few_bytes(
    group: int | None, most: float, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = big(tmp_path / "set", group)
    plain = EpisodeDataset(tmp_path / "set")[9 * 40 + 5]
    no_decoding(monkeypatch)
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        server.log.clear()
        same(data[9 * 40 + 5], plain)
        assert server.sent < most * size
        asked = len(server.log)
        same(data[9 * 40 + 5], plain)
        assert len(server.log) == asked
        data.catalog.files.close()


def moved(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(5, 3), table.slice(0, 5), table.slice(8)])


def split(table: pa.Table) -> pa.Table:
    """The last row of the first episode is the last one of the file."""
    return pa.concat_tables([table.slice(0, 4), table.slice(5), table.slice(4, 1)])


def longer(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 5), table.slice(4, 1), table.slice(5)])


def unknown(table: pa.Table) -> pa.Table:
    ids = table["episode_index"].to_pylist()
    return table.set_column(
        table.column_names.index("episode_index"), "episode_index", pa.array([None, *ids[1:]])
    )


def not_finite(table: pa.Table) -> pa.Table:
    values = np.stack(table["action"].to_numpy()).copy()
    values[7] = np.nan
    column = pa.array(values.tolist(), table.schema.field("action").type)
    return table.set_column(table.column_names.index("action"), "action", column)


def outcome(data: EpisodeDataset, episode: int) -> tuple[str, Any]:
    """A sample, or its error; and the warnings."""
    try:
        return "sample", dict(data.sample(episode, 2))
    except DatasetError as error:
        return "error", error.what


@pytest.mark.long
@pytest.mark.parametrize("group", [1, 4, 5, None])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("change", [moved, split, longer, unknown, not_finite])
def test_files_that_disagree_with_meta_are_read_as_in_a_folder(
    change: Callable[[pa.Table], pa.Table],
    statistics: bool,
    group: int | None,
    tmp_path: Path,
    cache: Path,
) -> None:
    write_dataset(tmp_path / "set", SPEC)
    path = next((tmp_path / "set").glob("data/chunk-*/*.parquet"))
    table = change(pq.read_table(path))
    pq.write_table(table, path, row_group_size=group, write_statistics=statistics)
    warnings.simplefilter("ignore")
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        for episode in range(6):
            local = EpisodeDataset(tmp_path / "set")
            far = remote(server, cache)
            kind, found = outcome(far, episode)
            expected_kind, expected = outcome(local, episode)
            assert kind == expected_kind
            if kind == "error":
                assert found == expected
            else:
                same(
                    {k: v if torch.is_tensor(v) else [v] for k, v in found.items()},
                    {k: v if torch.is_tensor(v) else [v] for k, v in expected.items()},
                )
            far.catalog.files.close()


def test_a_file_of_which_much_was_read_is_decoded_meanwhile(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(tmp_path / "set", 40)
    plain = EpisodeDataset(tmp_path / "set")
    monkeypatch.setattr(rows_module, "_WHOLE", 20)
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        for episode in range(30):
            same(data.sample(episode, 3), plain.sample(episode, 3))
        until = time.monotonic() + 60
        while 0 not in data._rows.mapped:
            assert time.monotonic() < until, "the file is never decoded"
            time.sleep(0.01)
        no_decoding(monkeypatch)
        data._rows.keep(0, 0)
        same(data.sample(7, 3), plain.sample(7, 3))
        another = remote(server, cache)
        same(another.sample(8, 3), plain.sample(8, 3))
        assert len(another._rows.parts) == 0
        another.catalog.files.close()
        data.catalog.files.close()
        assert not [t for t in threading.enumerate() if t.name == "understudy-fetch"]


def test_the_files_of_a_batch_are_asked_for_beside_each_other(tmp_path: Path, cache: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(4,) * 6, cameras=(), per_data_file=1))
    plain = EpisodeDataset(tmp_path / "set").batch(np.arange(6), np.arange(6) % 4)
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        asked_for = set[str]()
        all_six = threading.Event()

        def hold(number: int, asked: Asked) -> str:
            if "/data/" in asked.path:
                asked_for.add(asked.path)
                if len(asked_for) == 6:
                    all_six.set()
                return "" if all_six.wait(20) else "500"
            return ""

        server.fault = hold
        same(data.batch(np.arange(6), np.arange(6) % 4), plain)
        assert all_six.is_set()
        data.catalog.files.close()


def test_a_fault_elsewhere_in_a_file_is_an_error_of_its_next_sample(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is refused at its first sample; on a server, when the whole file was decoded beside
    the samples.
    """
    big(tmp_path / "set", 40)
    path = next((tmp_path / "set").glob("data/chunk-*/*.parquet"))
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    last = groups[-1]
    action = pa.array([*last["action"].to_pylist()[:-1], None], last["action"].type)
    groups[-1] = last.set_column(last.schema.get_field_index("action"), "action", action)
    with pq.ParquetWriter(path, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group)
    monkeypatch.setattr(rows_module, "_WHOLE", 20)
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)

        def read_for_a_minute() -> None:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                for episode in range(30):
                    data.sample(episode, 3)

        with pytest.raises(DatasetError) as raised:
            read_for_a_minute()
        data.catalog.files.close()
    with pytest.raises(DatasetError) as expected:
        EpisodeDataset(tmp_path / "set").sample(0, 3)
    assert raised.value.what == expected.value.what


def background(data: EpisodeDataset, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Receives what would be decoded in the background, and is not."""
    submitted: list[object] = []
    monkeypatch.setattr(data.catalog.files.remote_files.decoder, "submit", submitted.append)
    return submitted


def test_a_file_is_decoded_in_the_background_only_where_it_is_needed_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batches come before that: their files cost no more than their episodes and
    footers.
    """
    write_dataset(tmp_path / "set", SPEC)
    path = next((tmp_path / "set").glob("data/chunk-*/*.parquet"))
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    plain = EpisodeDataset(tmp_path / "set")
    footer = pq.read_metadata(path).serialized_size
    assert footer * rows_module._WHOLE > path.stat().st_size, "the footer alone is an eighth"
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        submitted = background(data, monkeypatch)
        monkeypatch.setattr(rows_module, "_MOST_TAKEN", float("inf"))
        for frame in range(3):
            same(data.sample(1, frame), plain.sample(1, frame))
            assert not submitted
        same(data.sample(2, 0), plain.sample(2, 0))
        assert len(submitted) == 1
        data.catalog.files.close()


def test_a_file_is_decoded_in_the_background_once_much_was_read(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(tmp_path / "set", 40)
    path = next((tmp_path / "set").glob("data/chunk-*/*.parquet"))
    facts = pq.read_metadata(path)
    group = facts.row_group(0)
    # the last one is unused
    used = sum(group.column(c).total_compressed_size for c in range(group.num_columns - 1))
    after_ten = facts.serialized_size + used * 10.5
    monkeypatch.setattr(rows_module, "_WHOLE", path.stat().st_size / after_ten)
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        submitted = background(data, monkeypatch)
        for episode in range(30):
            data.sample(episode, 3)
            assert bool(submitted) == (episode > 10), episode
        assert len(submitted) == 1
        data.catalog.files.close()


def test_a_file_is_read_at_once_where_its_parts_would_take_more_bytes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(
        tmp_path / "set", Spec(lengths=(40,) * 6, cameras=(), per_data_file=6, one_row_group=True)
    )
    plain = EpisodeDataset(tmp_path / "set")
    size = next((tmp_path / "set").glob("data/chunk-*/*.parquet")).stat().st_size
    with RangeServer(folder(tmp_path / "set", "/set")) as server:
        data = remote(server, cache)
        submitted = background(data, monkeypatch)
        server.log.clear()
        same(data.sample(2, 3), plain.sample(2, 3))
        assert 0 not in data._rows.mapped  # a part is enough
        same(data.sample(5, 3), plain.sample(5, 3))
        assert 0 in data._rows.mapped
        assert len(data._rows.parts) == 1
        assert not submitted
        assert server.sent <= size + 2  # and two looks at meta/
        data.catalog.files.close()
