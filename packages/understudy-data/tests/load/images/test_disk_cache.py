"""Decoded images on disk: the same bits with and without them, after kills, cuts, changes and
failures.
"""

import errno
import gc
import hashlib
import itertools
import multiprocessing
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError, SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.images import disk_cache
from understudy_data.load.images.disk_cache import DiskCache, StoredImages, bytes_on_disk
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.storage.remote_options import RemoteOptions
from understudy_data.testing.batches import all_same, batches, least_memory
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import RangeServer
from understudy_data.testing.servers import folder as files_below
from understudy_data.video.color import ImageSize
from understudy_data.video.packets import open_packets

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
BATCH = 6
EPOCHS = 14  # batches of two epochs of 40 frames
WINDOWS = {"action": [0.0, 0.1], TOP: [-0.1, 0.0], WRIST: [0.0, 0.2]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoded") / "dataset"
    write_dataset(path, Spec(lengths=(11, 7, 9, 13), gop=4, cameras=(TOP, WRIST)))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(root: Path, windows: bool = True) -> EpisodeDataset:
    return EpisodeDataset(root, delta_timestamps=WINDOWS if windows else None)


def order_of(data: EpisodeDataset) -> Order:
    return Order.from_datasets([data], batch_size=BATCH, seed=3, mode="uniform")


def read(root: Path, count: int = EPOCHS, **options: Any) -> tuple[list[dict[str, Any]], int]:
    """Batches of a new loader, and the frames that it decoded."""
    data = opened(root)
    with Loader([data], order=order_of(data), num_threads=2, **options) as loader:
        taken = [next(loader) for _ in range(count)]
        loader.close()
        return taken, loader.timings.frames


def image_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*-*") if path.is_file())


@pytest.mark.parametrize("image_size", [None, (16, 24)])
def test_two_epochs_are_the_same_and_a_second_loader_decodes_nothing(
    root: Path, folder: Path, image_size: tuple[int, int] | None
) -> None:
    expected, _ = read(root, image_size=image_size)
    first, decoded = read(root, image_size=image_size, decoded_cache=folder)
    second, again = read(root, image_size=image_size, decoded_cache=str(folder))
    assert all_same(first, expected)
    assert all_same(second, expected)
    assert decoded == 2 * 40  # each frame of both cameras once
    assert again == 0
    data = opened(root)
    assert sum(path.stat().st_size for path in image_files(folder)) == bytes_on_disk(
        data, image_size
    )


def test_loader_with_little_memory_uses_the_cache_and_decodes_each_frame_once(
    root: Path, folder: Path
) -> None:
    data = opened(root)
    memory = int(1.5 * least_memory(data, order=order_of(data))) + 30_000_000
    expected, _ = read(root)
    taken, decoded = read(root, memory=memory, decoded_cache=folder)
    assert all_same(taken, expected)
    assert decoded == 2 * 40
    with Loader([data], order=order_of(data), memory=memory, decoded_cache=folder) as loader:
        assert loader.plan.bytes <= memory
        assert loader.plan.keeps_decoded == (True,)


def test_a_cache_that_the_memory_has_no_decoders_for_is_not_silent(
    root: Path, folder: Path
) -> None:
    data = opened(root)
    memory = least_memory(data, order=order_of(data))
    with pytest.warns(UserWarning, match="decoded_cache"):
        taken, _ = read(root, memory=memory, decoded_cache=folder)
    assert all_same(taken, read(root)[0])
    assert not image_files(folder)


def test_a_mixture_has_files_for_each_dataset(root: Path, folder: Path) -> None:
    twin = root.with_name("twin")
    twin.symlink_to(root)
    data = [opened(root), opened(twin)]
    order = Order.from_datasets(data, batch_size=BATCH, seed=3)
    taken = []
    for cache in (None, folder, folder):
        with Loader(data, order=order, num_threads=2, decoded_cache=cache) as loader:
            taken.append([next(loader) for _ in range(2 * EPOCHS)])
            loader.close()
            frames = loader.timings.frames
    assert all_same(taken[1], taken[0])
    assert all_same(taken[2], taken[0])
    assert frames == 0


def test_a_remote_dataset_is_decoded_once(root: Path, tmp_path: Path, folder: Path) -> None:
    expected = batches(opened(root), order_of(opened(root)), EPOCHS)
    with RangeServer(files_below(root, "/set")) as server:
        for decoded in (True, False):
            remote = RemoteOptions(cache=str(tmp_path / "fetched"))
            there = Catalog.open(f"{server.url}/set", remote)
            data = EpisodeDataset(there, delta_timestamps=WINDOWS)
            with Loader([data], order=order_of(data), decoded_cache=folder) as loader:
                assert all_same([next(loader) for _ in range(EPOCHS)], expected)
                loader.close()
                assert (loader.timings.frames > 0) == decoded


def test_sizes_and_selections_have_files_of_their_own(root: Path, folder: Path) -> None:
    for size in ((16, 24), (24, 16), None):
        assert all_same(
            read(root, image_size=size, decoded_cache=folder)[0], read(root, image_size=size)[0]
        )
    data = opened(root, windows=False)
    part = EpisodeDataset(root, episodes=[1, 3])
    order = order_of(part)
    expected = batches(part, order, 5)
    assert all_same(batches(part, order, 5, decoded_cache=folder), expected)
    assert all_same(
        batches(data, order_of(data), 9, decoded_cache=folder), batches(data, order_of(data), 9)
    )


def _killed(root: Path, folder: Path, at: int) -> None:
    """Read with a cache in a process that is killed in the middle of a write."""
    write = os.pwrite
    count = itertools.count(1)

    def killing(file: int, data: Any, place: int) -> int:
        if next(count) == at:
            write(file, bytes(data)[: len(data) // 2], place)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(file, data, place)

    os.pwrite = killing  # type: ignore[assignment]
    read(root, decoded_cache=folder)


@pytest.mark.parametrize("writes", [1, 8, 33, 70])  # within an identity, an image, or its mark
def test_a_kill_leaves_only_complete_images(root: Path, folder: Path, writes: int) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=_killed, args=(root, folder, writes)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    taken, decoded = read(root, decoded_cache=folder)
    assert all_same(taken, read(root)[0])
    assert 0 < decoded <= 2 * 40
    assert writes < 33 or decoded < 2 * 40  # complete images are used
    assert read(root, decoded_cache=folder)[1] == 0


def _read(root: Path, folder: Path, queue: Any) -> None:
    queue.put(digests(read(root, decoded_cache=folder)[0]))


def digests(taken: list[dict[str, Any]]) -> list[str]:
    return [
        hashlib.sha256(batch[camera].numpy()).hexdigest()
        for batch in taken
        for camera in (TOP, WRIST)
    ]


def test_processes_share_a_cache(root: Path, folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_read, args=(root, folder, queue)) for _ in range(3)]
    for process in processes:
        process.start()
    taken = [queue.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    assert taken == [digests(read(root)[0])] * 3
    assert read(root, decoded_cache=folder)[1] == 0


def test_ranks_and_workers_share_a_cache(root: Path, folder: Path) -> None:
    data = opened(root)
    order = order_of(opened(root))
    for rank in range(2):
        options: dict[str, Any] = {"rank": rank, "world_size": 2}
        assert all_same(
            batches(data, order, 14, decoded_cache=folder, **options),
            batches(data, order, 14, **options),
        )
    stream = iter(EpisodeStream(data, order=order, decoded_cache=folder))
    assert all_same([next(stream) for _ in range(7)], read(root, 7)[0])
    assert len(list(folder.rglob("lock"))) == 2  # one set


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_and_extend(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def _replace(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def _fold(path: Path) -> None:
    path.write_bytes(b"\1" * path.stat().st_size)


@pytest.mark.parametrize(
    "damage", [_cut, _cut_and_extend, _replace, _fold, os.unlink, lambda path: path.chmod(0)]
)
def test_a_damaged_file_is_decoded_again(
    root: Path, folder: Path, damage: Callable[[Path], Any]
) -> None:
    expected, _ = read(root)
    read(root, decoded_cache=folder)
    for path in image_files(folder)[::2]:
        damage(path)
    taken, decoded = read(root, decoded_cache=folder)
    assert all_same(taken, expected)
    assert decoded > 0 or os.geteuid() == 0


@pytest.mark.parametrize("damage", [_cut, _fold, os.unlink])
def test_files_damaged_under_a_running_loader(
    root: Path, folder: Path, damage: Callable[[Path], Any]
) -> None:
    expected, _ = read(root, 35)
    data = opened(root)
    with Loader([data], order=order_of(data), decoded_cache=folder) as loader:
        taken = [next(loader) for _ in range(7)]
        for path in image_files(folder):
            damage(path)
        taken += [next(loader) for _ in range(7)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            folder.rename(folder.with_name("away"))  # a thread may warn at once
            taken += [next(loader) for _ in range(21)]
    assert any(str(folder) in str(warning.message) for warning in caught)
    assert all_same(taken, expected)


@pytest.mark.parametrize("damage", [_cut, _fold])
def test_a_file_damaged_during_a_read_is_not_trusted(
    root: Path, folder: Path, damage: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = opened(root)
    files = DiskCache(str(folder), 10**9).open(data)
    images = files.images(data, TOP, 0, 0, (32, 32))
    out = np.zeros(images.shape, images.dtype)
    images.write(0, out)
    assert images.read(0, out)
    preadv = os.preadv

    def late(*arguments: Any) -> int:
        for path in image_files(folder):
            damage(path)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", late)
    assert not images.read(0, out)


def test_a_changed_video_is_decoded_again(root: Path, tmp_path: Path, folder: Path) -> None:
    changing = tmp_path / "dataset"
    shutil.copytree(root, changing)
    before, _ = read(changing, decoded_cache=folder)
    videos = sorted(changing.rglob("*.mp4"))
    shutil.copy(
        next(p for p in videos if WRIST in str(p)), next(p for p in videos if TOP in str(p))
    )
    expected, _ = read(changing)
    assert not all_same(before, expected)
    taken, decoded = read(changing, decoded_cache=folder)
    assert all_same(taken, expected)
    assert decoded > 0
    assert read(changing, decoded_cache=folder)[1] == 0


def test_images_of_a_video_that_changes_are_not_kept(
    root: Path, tmp_path: Path, folder: Path
) -> None:
    changing = tmp_path / "dataset"
    shutil.copytree(root, changing)
    data = opened(changing)
    files = DiskCache(str(folder), 10**9).open(data)
    images = files.images(data, TOP, 0, 0, (32, 32))
    for path in changing.rglob("*.mp4"):
        os.utime(path)
    with pytest.raises(SourceError):
        files.store(images, 0, np.zeros(images.shape, np.uint8))
    assert not images.decoded().any()


def test_a_restart_of_the_host_empties_the_cache(
    root: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(root, decoded_cache=folder)
    gc.collect()  # the closed loader
    boot = tmp_path / "boot_id"
    boot.write_text("00000000-0000-0000-0000-000000000000\n")
    (folder / "decoded" / "other" / "file-0").mkdir(parents=True)
    monkeypatch.setattr(disk_cache, "_BOOT_ID", boot)
    assert read(root, decoded_cache=folder)[1] == 2 * 40
    assert {path.parent.parent.name for path in image_files(folder)} == {boot.read_text().strip()}
    assert (folder / "decoded" / "other" / "file-0").exists()
    boot.unlink()
    with refused("decoded_cache", kind=ValueError):
        read(root, decoded_cache=folder)


def test_a_full_disk_costs_time_only(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # next() is atomic; several threads write
    write = StoredImages._write
    turns = itertools.count()

    def full(self: StoredImages, file: int, frame: int, image: np.ndarray) -> None:
        if next(turns) >= 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, file, frame, image)

    monkeypatch.setattr(StoredImages, "_write", full)
    with pytest.warns(UserWarning, match=str(folder)) as warned:
        taken, _ = read(root, decoded_cache=folder)
    assert len([each for each in warned if str(folder) in str(each.message)]) == 1
    assert all_same(taken, read(root)[0])
    monkeypatch.undo()
    taken, decoded = read(root, decoded_cache=folder)
    assert all_same(taken, read(root)[0])
    assert decoded == 2 * 40 - 30


def test_threads_whose_writes_fail_at_once_warn_once(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)

    def full(self: StoredImages, file: int, frame: int, image: np.ndarray) -> None:
        together.wait(timeout=30)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(StoredImages, "_write", full)
    data = opened(root)
    files = DiskCache(str(folder), 10**9).open(data)
    images = files.images(data, TOP, 0, 0, (32, 32))
    with pytest.warns(UserWarning, match=str(folder)) as warned, ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                lambda frame: files.store(images, frame, np.zeros(images.shape, np.uint8)), range(4)
            )
        )
    assert len(warned) == 1


def test_images_that_do_not_fit_are_refused_with_both_sizes(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = bytes_on_disk(opened(root))
    with refused(str(needed), str(needed - 1), str(folder), kind=ValueError):
        read(root, decoded_cache=(folder, needed - 1))
    usage = shutil._ntuple_diskusage(10, 5, 5)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with refused(str(needed), "5 free", kind=ValueError):
        read(root, decoded_cache=folder)


def test_images_in_use_are_not_removed_for_others(root: Path, folder: Path) -> None:
    data = opened(root)
    small = (8, 8)
    size = bytes_on_disk(data) + bytes_on_disk(data, small) - 1
    cache = DiskCache(str(folder), size)
    read(root, decoded_cache=(folder, size))
    old = image_files(folder)
    using = cache.open(data)
    with refused(str(bytes_on_disk(data, small)), kind=ValueError):
        EpisodeStream(data, batch_size=BATCH, image_size=small, decoded_cache=(folder, size))
    with refused(str(bytes_on_disk(data, small)), str(bytes_on_disk(data)), kind=ValueError):
        cache.open(data, small)
    assert image_files(folder) == old
    assert read(root, decoded_cache=(folder, size))[1] == 0  # the same images need no more space
    del using
    gc.collect()  # the closed loaders
    using = cache.open(data, small)
    assert not image_files(folder)
    del using


def test_an_unreadable_frame_behaves_as_without_a_cache(
    root: Path, tmp_path: Path, folder: Path
) -> None:
    broken = tmp_path / "dataset"
    shutil.copytree(root, broken)
    path = next(path for path in sorted(broken.rglob("*.mp4")) if TOP in str(path))
    packets = open_packets(str(path))
    content = bytearray(path.read_bytes())
    # a key frame
    at = int(packets.index.offset[4])
    size = int(packets.index.size[4])
    content[at + 5 : at + size] = b"\xff" * (size - 5)
    packets.close()
    path.write_bytes(content)
    options: dict[str, Any] = {"on_bad_frame": "substitute", "bad_frame_cap": 1.0}
    expected, _ = read(broken, **options)
    for _ in range(2):
        assert all_same(read(broken, decoded_cache=folder, **options)[0], expected)
    with pytest.raises(DatasetError):
        read(broken)
    with pytest.raises(DatasetError):
        read(broken, decoded_cache=folder)


def test_ways_of_resizing_have_files_of_their_own(root: Path, folder: Path) -> None:
    for size in (ImageSize((8, 8), _corner), ImageSize((8, 8), _last_corner), (8, 8)):
        expected, _ = read(root, image_size=size)
        assert all_same(read(root, image_size=size, decoded_cache=folder)[0], expected)
    with refused("image_size", kind=ValueError):
        read(root, image_size=ImageSize((8, 8), lambda planes, out: None), decoded_cache=folder)


def _corner(planes: np.ndarray, out: np.ndarray) -> None:
    out[...] = planes[:, :8, :8]


def _last_corner(planes: np.ndarray, out: np.ndarray) -> None:
    out[...] = planes[:, -8:, -8:]


def test_a_size_that_is_none_is_refused(root: Path, folder: Path) -> None:
    with refused("decoded_cache", "lots", kind=ValueError):
        EpisodeStream(opened(root), batch_size=BATCH, decoded_cache=(folder, "lots"))


def test_a_network_folder_is_refused(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "is_network", lambda path: True)
    with refused(str(folder), kind=ValueError):
        read(root, decoded_cache=folder)


def test_a_folder_that_cannot_be_made_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError) as caught:
        read(root, decoded_cache=tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value.where)
