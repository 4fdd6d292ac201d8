"""Correct readers, samplers, loaders and models in memory. Faults override methods of them."""

import json
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from understudy_conformance.sets import DRIFT, ONE_FILE, SETS, TASKS, V30, DemoSet, paint, values

KNOWN = ("v2.0", "v2.1", "v3.0")


def demo_of(root: Path) -> DemoSet:
    return next(demo for demo in SETS if demo.name == root.name)


painted = cache(paint)


class Reader:
    """A correct reader, whose images are painted instead of decoded."""

    def __init__(
        self,
        root: Path,
        episodes: Sequence[int] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.root, self.demo = root, demo_of(root)
        self.check_version(json.loads((root / "meta/info.json").read_text())["codebase_version"])
        self.episodes = episodes
        self.seconds = delta_timestamps or {}
        self.frames = self.choose_frames()

    def check_version(self, version: str) -> None:
        if version not in KNOWN:
            raise ValueError(f"version {version} is not known")

    def choose_frames(self) -> list[tuple[int, int]]:
        return [
            place
            for place in self.demo.frames
            if self.episodes is None or place[0] in self.episodes
        ]

    def row(self, episode: int, frame: int) -> dict[str, Any]:
        return dict(values(episode, frame))

    def image(self, camera: int, episode: int, frame: int) -> np.ndarray:
        self.check_video(episode)
        return painted(camera, *self.shown(camera, episode, frame)).copy()

    def check_video(self, episode: int) -> None:
        """Raise if the last video, that of the last episode, is missing."""
        counts = {V30: 5, ONE_FILE: 2, DRIFT: 1}
        is_last = episode == len(self.demo.lengths) - 1
        if is_last and self.videos < counts.get(self.demo, 3):
            raise FileNotFoundError("a video is missing")

    @cached_property
    def videos(self) -> int:
        return len(list(self.root.rglob("*.mp4")))

    def shown(self, camera: int, episode: int, frame: int) -> tuple[int, int]:
        return episode, frame

    def text(self, episode: int, frame: int) -> str:
        return TASKS[self.demo.task_index(episode, frame)]

    def steps(self, key: str, frame: int) -> list[int]:
        return [frame + round(offset * self.demo.fps) for offset in self.seconds[key]]

    def bounds(self, episode: int) -> tuple[int, int]:
        return 0, self.demo.lengths[episode]

    def pads(self, steps: list[int], episode: int) -> np.ndarray:
        low, high = self.bounds(episode)
        return np.array([not low <= step < high for step in steps])

    def clamp(self, step: int, episode: int) -> int:
        return min(max(step, 0), self.demo.lengths[episode] - 1)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int) -> dict[str, Any]:
        episode, frame = self.frames[number]
        sample = self.row(episode, frame)
        for camera, key in enumerate(self.demo.cameras):
            sample[key] = self.image(camera, episode, frame)
        for key in self.seconds:
            steps = self.steps(key, frame)
            inside = [self.clamp(step, episode) for step in steps]
            if key in self.demo.cameras:
                camera = self.demo.cameras.index(key)
                sample[key] = np.stack([self.image(camera, episode, step) for step in inside])
            else:
                sample[key] = np.stack([self.row(episode, step)[key] for step in inside])
            sample[f"{key}_is_pad"] = self.pads(steps, episode)
        sample["task"] = self.text(episode, frame)
        first = sum(self.demo.lengths[:episode])
        return sample | {"episode_index": episode, "frame_index": frame, "index": first + frame}


class Loader:
    """A correct loader: epochs with a short last batch, any ranks, a state."""

    reader: type[Reader] = Reader

    def __init__(
        self,
        root: Path,
        rank: int,
        world_size: int,
        num_workers: int,
        seed: int,
        batch_size: int,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.data = self.reader(root, None, delta_timestamps)
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.seed = seed
        self.batch_size = batch_size
        self.epoch = 0
        self.taken = 0

    def order(self) -> list[int]:
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self.data)).tolist()

    def shares(self) -> list[list[int]]:
        """Numbers of this rank's batches from sample `taken` of the epoch on; each rank has as many
        batches.
        """
        rest = self.order()[self.taken :]
        size = self.batch_size * self.world_size
        steps = [rest[i : i + size] for i in range(0, len(rest), size)]
        return [step[self.rank :: self.world_size] for step in steps]

    def collate(self, samples: list[dict[str, Any]]) -> Any:
        return {key: [sample[key] for sample in samples] for key in samples[0]}

    def __iter__(self) -> Iterator[Any]:
        size = self.batch_size * self.world_size
        total = len(self.data)
        for share in self.shares():
            self.taken = min(self.taken + size, total)
            if share:
                yield self.collate([self.data[number] for number in share])
        self.taken = 0
        self.epoch = self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        ended = self.taken >= len(self.data)
        return {"epoch": self.epoch + ended, "taken": 0 if ended else self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        self.taken = state["taken"]


class Sampler:
    """A correct sampler."""

    def __init__(
        self, lengths: Sequence[int], seed: int, epoch: int, rank: int, world_size: int
    ) -> None:
        self.total = sum(lengths)
        self.seed = seed
        self.epoch = epoch
        self.rank = rank
        self.world_size = world_size

    def order(self) -> list[int]:
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.total).tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[self.rank :: self.world_size])


class Model:
    """A model of two tensors in a pickle."""

    def __init__(self) -> None:
        self.weights = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(4, np.float32)}

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        (folder / "weights.pickle").write_bytes(pickle.dumps(state))

    def read(self, folder: Path) -> dict[str, Any]:
        state = pickle.loads((folder / "weights.pickle").read_bytes())
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in self.weights.items()}:
            raise ValueError("other tensors")
        return state

    def load(self, folder: Path) -> dict[str, Any]:
        self.weights = self.read(folder)
        return self.weights


def compute_statistics(root: Path) -> dict[str, Any]:
    """Correct statistics."""
    return deepcopy(statistics_of(demo_of(root)))


@cache
def statistics_of(demo: DemoSet) -> dict[str, Any]:
    out = {}
    for key in values(0, 0):
        out[key] = moments(np.array([values(*place)[key] for place in demo.frames], np.float64))
    for camera, key in enumerate(demo.cameras):
        out[key] = moments(
            np.array([painted(camera, *place) for place in demo.frames]).reshape(-1, 3) / 255
        )
    return out


def moments(rows: np.ndarray) -> dict[str, Any]:
    names = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    return names | {f"q{n:02}": np.quantile(rows, n / 100, axis=0) for n in (1, 50, 99)}


logger = logging.getLogger("conformance_toys")


class Hangs(Loader):
    def __iter__(self) -> Iterator[Any]:
        import threading

        yield threading.Event().wait()


class Dies(Loader):
    def __iter__(self) -> Iterator[Any]:
        import os

        os.abort()
        yield


class Prints(Loader):
    def __iter__(self) -> Iterator[Any]:
        print("a line of the loader")
        return super().__iter__()


def first_indices(root: Path, seed: int) -> Iterator[int]:
    """Seeded indices."""
    return iter(np.random.default_rng(seed).permutation(100).tolist())


def hashed_indices(root: Path, seed: int) -> Iterator[int]:
    """Indices of a seed that Python's `hash` of a text makes."""
    return first_indices(root, hash(f"seed {seed}") % 2**32)


def import_package(way: str) -> None:
    """Import a package that is not installed, and fail as libraries do."""
    if way == "wraps":
        try:
            import_package("bare")
        except ImportError as error:
            raise RuntimeError("no decoder") from error
    if way == "quotes":
        raise RuntimeError(
            "Traceback (most recent call last):\n  ...\n"
            "ModuleNotFoundError: No module named 'no_package'"
        )
    import no_package  # type: ignore[import-not-found]  # noqa: F401


class LacksPackage(Reader):
    """Its first sample needs a package."""

    way = "bare"

    def __getitem__(self, number: int) -> dict[str, Any]:
        import_package(self.way)
        return super().__getitem__(number)


class WrapsLack(LacksPackage):
    way = "wraps"


class QuotesLack(LacksPackage):
    way = "quotes"


class DiesOfLack(LacksPackage):
    """Its process ends."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        try:
            return super().__getitem__(number)
        except ImportError:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


class LacksLater(Reader):
    """Datasets of other versions need a package, which looks like a refusal."""

    def check_version(self, version: str) -> None:
        if version not in KNOWN:
            import_package("bare")


class ModelLacks:
    """Its checkpoints need a package, which looks like a refusal, too."""

    def state_dict(self) -> dict[str, Any]:
        return {"weight": np.zeros(3, np.float32)}

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        (folder / "weights").write_bytes(pickle.dumps(state))

    def load(self, folder: Path) -> dict[str, Any]:
        import_package("bare")
        return {}
