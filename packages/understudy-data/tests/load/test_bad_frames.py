"""Substitution of unreadable samples by a neighbour, the same in every run; nothing else
changes.
"""

import gc
import json
import shutil
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.bad_frames import Substitutes
from understudy_data.load.images.clip_reader import ClipReader, Cursors, DecodePolicy, Timings
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.order.sample_random import SampleRng
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.color import Converter
from understudy_data.video.packets import open_packets

TOP = "observation.images.top"
BATCH = 4
STEPS = 24


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("substitute") / "sound"
    write_dataset(path, Spec(lengths=(30, 24, 41), gop=2))
    return path


@pytest.fixture(scope="module")
def damaged(sound: Path) -> Path:
    """The same with two packets overwritten: a key frame (it and its follower are lost) and a frame
    alone.
    """
    path = sound.with_name("damaged")
    shutil.copytree(sound, path)
    video = sorted((path / "videos").rglob("*.mp4"))[0]
    packets = open_packets(str(video))
    content = bytearray(video.read_bytes())
    for picture in (10, 33):
        at = int(packets.index.offset[picture])
        size = int(packets.index.size[picture])
        content[at + 5 : at + size] = b"\xff" * (size - 5)
    packets.close()
    video.write_bytes(bytes(content))
    return path


def opened(root: Path, **options: Any) -> EpisodeDataset:
    return EpisodeDataset(
        root, delta_timestamps={"action": [0.0, 0.1]}, frame_cache_bytes=0, **options
    )


def order_of(data: EpisodeDataset, **options: Any) -> Order:
    return Order.from_datasets(
        [data], batch_size=BATCH, seed=2, **{"clip": 8, "lanes": 4, **options}
    )


def take(loader: Loader) -> dict[str, Any]:
    """All samples of some steps, stacked."""
    with loader:
        found = [next(loader) for _ in range(STEPS)]
    return {
        k: torch.cat([b[k] for b in found])
        for k in found[0]
        if isinstance(found[0][k], torch.Tensor)
    }


def bad_frames(data: EpisodeDataset) -> set[tuple[int, int]]:
    found = set()
    for episode, start, stop in data.segments.tolist():
        for frame in range(start, stop):
            try:
                data.sample(episode, frame)
            except DatasetError:
                found.add((episode, frame))
    return found


@pytest.mark.parametrize("memory", ["1.6MB", "1GB"])
@pytest.mark.parametrize("mode", ["clips", "uniform"])
def test_substitutes_replace_bad_frames_only(
    sound: Path, damaged: Path, tmp_path: Path, memory: str, mode: str
) -> None:
    data = opened(damaged)
    bad = bad_frames(data)
    assert len(bad) >= 3
    options = {} if mode == "clips" else {"mode": "uniform", "clip": None, "lanes": None}
    order = order_of(data, **options)
    journal = tmp_path / "journal.jsonl"
    with refused("packet", where="", fix="damaged"):
        take(Loader([opened(damaged)], order=order, memory=memory))
    given = {"order": order, "memory": memory, "on_bad_frame": "substitute"}
    loader = Loader([opened(damaged)], journal=journal, num_threads=3, **given)
    found = take(loader)
    plain = take(Loader([opened(sound)], order=Order.from_json(order.to_json(), [opened(sound)])))
    _, episode, frame = order.locate(found["position"].numpy())
    replaced = {s.position: s for s in loader.substitutions}
    assert [json.loads(line)["position"] for line in journal.read_text().splitlines()] == list(
        replaced
    )
    for i, position in enumerate(found["position"].tolist()):
        if (int(episode[i]), int(frame[i])) not in bad:
            assert position not in replaced
            assert all(torch.equal(found[key][i], plain[key][i]) for key in found)
            continue
        one = replaced[position]
        assert (one.episode, one.frame) == (episode[i], frame[i])
        # and no other of the episodes that share the file
        assert f"(episode {one.episode})" in one.reason
        instead = one.instead_episode, one.instead_frame
        near = list(zip(*(a.tolist() for a in order.neighbors(position, 99))))
        # the first that can be read
        assert instead == next(pair for pair in near if pair not in bad)
        sample = opened(sound).sample(*instead)
        assert all(torch.equal(found[key][i], sample[key]) for key in sample if key in found)
    for world in (2, 4):
        parts = [
            take(Loader([opened(damaged)], rank=r, world_size=world, num_threads=1, **given))
            for r in range(world)
        ]
        together = torch.cat([p[TOP].reshape(STEPS, -1, *p[TOP].shape[1:]) for p in parts], 1)
        assert torch.equal(together.reshape(found[TOP].shape), found[TOP])


def test_clip_reader_raises_at_the_sample_of_the_bad_frame(damaged: Path) -> None:
    data = opened(damaged, episodes=[0])
    decoded = dict[int, Any]()
    rows, frames = data.frames_to_decode(np.zeros(2, int), np.array([9, 10]))
    reader = ClipReader(
        data, TOP, [0, 1], rows, frames[TOP], DecodePolicy(8, True), [], Cursors(1), Converter()
    )
    reader.decode_next(decoded, Timings())  # decodes ahead
    assert list(decoded) == [0]
    with refused("packet", where="", fix="damaged"):
        reader.decode_next(decoded, Timings())


def test_order_neighbors_are_of_the_clip_first_and_of_the_selection(damaged: Path) -> None:
    data = opened(damaged, exclude_episodes=[1])
    order = order_of(data)
    for position in range(40):
        positions, episode, frame = order.rest_of_clip(position, 99)
        near = list(zip(*(a.tolist() for a in order.neighbors(position, 9999))))
        mates = list(zip(episode.tolist(), frame.tolist()))
        # a lane may end inside a clip
        assert near[: len(mates) - 1] == mates[1:] or len(positions) < 8
        assert len(near) == len(set(near)) == len(data) - 1
        assert mates[0] not in near
        assert {episode for episode, _ in near} <= {0, 2}


def test_substitutes_replace_bad_rows(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "rows"
    shutil.copytree(sound, root)
    data = root / "data/chunk-000/file-001.parquet"  # episode 2 alone
    data.write_bytes(data.read_bytes()[:-20])
    order = order_of(opened(root))
    with pytest.raises(DatasetError):
        take(Loader([opened(root)], order=order))
    loader = Loader([opened(root)], order=order, on_bad_frame="substitute", bad_frame_cap=0.9)
    found = take(loader)
    assert len(loader.substitutions) > 10
    assert 2 not in found["episode_index"]
    for i, position in enumerate(found["position"].tolist()):
        _, episode, frame = order.locate([position])
        assert episode[0] == 2 or found["frame_index"][i] == frame[0]


def test_substitutes_beyond_the_cap_are_an_error(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "rows"
    shutil.copytree(sound, root)
    data = root / "data/chunk-000/file-001.parquet"
    data.write_bytes(data.read_bytes()[:-20])
    loader = Loader([opened(root)], order=order_of(opened(root)), on_bad_frame="substitute")
    with refused(17, 16, where="rows"):
        take(loader)
    both = Order.from_datasets([opened(sound), opened(root)], batch_size=BATCH, seed=2)
    substitutes = Substitutes(both, None, 0.0)
    for number in range(32):  # each source has its own
        substitutes.find(number, number % 2, 0, number // 2, "torn", lambda *_: None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_closed_loader_is_freed_with_its_images(sound: Path, damaged: Path, fails: bool) -> None:
    """The error of a batch has the frames of the loader that raised it."""
    data = opened(damaged if fails else sound)
    loader = Loader([data], order=order_of(data))
    with pytest.raises(DatasetError) if fails else nullcontext():
        take(loader)
    alive = weakref.ref(loader)
    del loader
    gc.collect()
    assert alive() is None


def test_loader_refuses_an_unknown_on_bad_frame(sound: Path) -> None:
    data = opened(sound)
    with refused("on_bad_frame", "'skip'", kind=ValueError):
        Loader([data], order=order_of(data), on_bad_frame="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize("memory", ["1.6MB", "1GB"])
def test_substitutes_are_augmented_by_the_position(damaged: Path, memory: str) -> None:
    def paint(pictures: dict[str, torch.Tensor], rng: SampleRng) -> None:
        for picture in pictures.values():
            picture[:] = int(rng.integers(0, 256))

    data = opened(damaged)
    order = order_of(data)
    loader = Loader([data], order=order, memory=memory, on_bad_frame="substitute", augment=paint)
    found = take(loader)
    assert len(loader.substitutions) >= 3
    for picture, position in zip(found[TOP], found["position"].tolist()):
        assert (picture == int(SampleRng(order.seed, "augment", position).integers(0, 256))).all()


def test_substitutes_made_twice_are_journaled_once(sound: Path, tmp_path: Path) -> None:
    data = opened(sound)
    journal = tmp_path / "journal.jsonl"
    order = order_of(data)
    substitutes = Substitutes(order, journal, 0.5)
    found = []
    for position in (0, 1, 0):  # 0 was given up with its loader's threads
        _, episode, frame = (int(a[0]) for a in order.locate([position]))
        found.append(
            substitutes.find(position, 0, episode, frame, "broken", lambda episode, frame: None)
        )
    assert found[2] == found[0]
    journaled = [json.loads(line)["position"] for line in journal.read_text().splitlines()]
    assert journaled == [one.position for one in substitutes.made] == [0, 1]
