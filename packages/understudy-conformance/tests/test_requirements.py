"""Correct code meets all requirements. Each planted fault fails those that name it, and no
other.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_toys import (
    Loader,
    Model,
    Reader,
    Sampler,
    compute_statistics,
    demo_of,
    first_indices,
    logger,
    moments,
)

from understudy_conformance.catalog import Factory, examine, select_requirements
from understudy_conformance.sets import DARK, DRIFT, V30


def outcomes(subject: str, function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    factory = Factory(function)
    results = [examine(requirement, factory) for requirement in select_requirements(subject)]
    return {result.number.rpartition("-")[2]: (result.status, result.facts) for result in results}


def failures(subject: str, function: Callable[..., Any]) -> dict[str, str]:
    return {
        number: facts
        for number, (status, facts) in outcomes(subject, function).items()
        if status == "failed"
    }


def expect(subject: str, function: Callable[..., Any], numbers: str) -> None:
    found = failures(subject, function)
    assert set(found) == set(numbers.split()), found


# -- readers ---------------------------------------------------------------------------------------


class LeavesOutTheLast(Reader):
    def choose_frames(self) -> list[tuple[int, int]]:
        return super().choose_frames()[: -1 if self.episodes is None and self.demo is V30 else None]


class StartsAgain(Reader):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return super().__getitem__(number % len(self))


class OtherRow(Reader):
    """State and action of the row before."""

    def row(self, episode: int, frame: int) -> dict[str, Any]:
        other = super().row(episode, max(0, frame - 1))
        return super().row(episode, frame) | {"observation.gripper": other["observation.gripper"]}


class CastsToFloat32(Reader):
    def row(self, episode: int, frame: int) -> dict[str, Any]:
        return {key: value.astype(np.float32) for key, value in super().row(episode, frame).items()}


class TaskOfTheEpisode(Reader):
    """The first task of the episode, for all its frames."""

    def text(self, episode: int, frame: int) -> str:
        return super().text(episode, 0)


class TimeOfTheDataset(Reader):
    """A video is read at the time of the whole dataset, as in LeRobot #4524."""

    def shown(self, camera: int, episode: int, frame: int) -> tuple[int, int]:
        if self.demo is not V30:
            return episode, frame
        packed = (2, 3)[camera]
        index = sum(self.demo.lengths[:episode]) + frame
        members = range(
            episode // packed * packed,
            min((episode // packed + 1) * packed, len(self.demo.lengths)),
        )
        frames = [(member, i) for member in members for i in range(self.demo.lengths[member])]
        return frames[min(index, len(frames) - 1)]


class RoundsDown(Reader):
    """The frame is int(seconds * fps), in float32."""

    def shown(self, camera: int, episode: int, frame: int) -> tuple[int, int]:
        seconds = np.float32(self.demo.timestamp(episode, frame)) - np.float32(1e-6)
        return episode, max(0, int(seconds * np.float32(self.demo.fps)))


class RoundsUp(Reader):
    """A clock that is late by 0.3 frames or more gives the next frame."""

    def shown(self, camera: int, episode: int, frame: int) -> tuple[int, int]:
        late = self.demo.timestamp(episode, frame) * self.demo.fps + 0.7
        return episode, min(
            int(late + 1e-6), self.demo.lengths[episode] - 1
        ) if self.demo is DRIFT else frame


class OtherCamera(Reader):
    def image(self, camera: int, episode: int, frame: int) -> np.ndarray:
        return super().image(1 - camera if self.demo is V30 else camera, episode, frame)


class OtherChannels(Reader):
    def image(self, camera: int, episode: int, frame: int) -> np.ndarray:
        return super().image(camera, episode, frame)[..., ::-1]


class LimitedRange(Reader):
    def image(self, camera: int, episode: int, frame: int) -> np.ndarray:
        return (super().image(camera, episode, frame) * (219 / 255) + 16).astype(np.uint8)


class WindowOneLate(Reader):
    def clamp(self, step: int, episode: int) -> int:
        return super().clamp(step + 1, episode)


class PadsOneLate(Reader):
    """The frame at the end of the episode counts as inside it."""

    def bounds(self, episode: int) -> tuple[int, int]:
        return 0, self.demo.lengths[episode] + 1


class WindowsRunOn(Reader):
    """Steps behind the end belong to the next episode, without a mark."""

    def pads(self, steps: list[int], episode: int) -> np.ndarray:
        return np.zeros(len(steps), bool)


class ReadsAllEpisodes(Reader):
    def choose_frames(self) -> list[tuple[int, int]]:
        return self.demo.frames


class PlaceAmongTheChosen(Reader):
    """The place of an episode among the chosen ones counts as its number, as in LeRobot #1783."""

    def bounds(self, episode: int) -> tuple[int, int]:
        place = episode if self.episodes is None else list(self.episodes).index(episode)
        return 0, self.demo.lengths[place]


class WarnsOfOlder(Reader):
    """The comparison of versions is inverted, as in LeRobot #4851."""

    def check_version(self, version: str) -> None:
        if version < "v3.1":
            logging.getLogger("reader").warning("the dataset has an older version, %s", version)


class WarnsOfLater(Reader):
    def check_version(self, version: str) -> None:
        if version > "v3.0":
            logger.warning("the dataset has a later version, %s", version)


class SkipsErrors(Reader):
    """A frame that cannot be read counts as the end, as in LeRobot #4237."""

    def choose_frames(self) -> list[tuple[int, int]]:
        frames = super().choose_frames()
        try:
            self.check_video(len(self.demo.lengths) - 1)
        except FileNotFoundError:
            return [place for place in frames if place[0] < len(self.demo.lengths) - 1]
        return frames


class OtherInV21(Reader):
    def row(self, episode: int, frame: int) -> dict[str, Any]:
        return super().row(episode, 0 if self.demo.version == "v2.1" else frame)


@pytest.mark.parametrize(
    ("reader", "numbers"),
    [
        (Reader, ""),
        (WarnsOfLater, ""),
        (LeavesOutTheLast, "01"),
        (StartsAgain, "02"),
        (OtherRow, "03 11 14 15"),
        (CastsToFloat32, "04"),
        (TaskOfTheEpisode, "05"),
        (TimeOfTheDataset, "06 08 11"),
        (RoundsDown, "06 08 11 14 15"),
        (RoundsUp, "12"),
        (OtherCamera, "06 08 11"),
        (OtherChannels, "07"),
        (LimitedRange, "07"),
        (WindowOneLate, "08 11"),
        (PadsOneLate, "09 11"),
        (WindowsRunOn, "09 11"),
        (ReadsAllEpisodes, "10"),
        (PlaceAmongTheChosen, "11"),
        (WarnsOfOlder, "13"),
        (SkipsErrors, "16"),
        (OtherInV21, "14"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_reader(reader: type[Reader], numbers: str) -> None:
    expect("reader", reader, numbers)


def test_reader_that_is_iterated() -> None:
    """Without positions; without `episodes` and `delta_timestamps`, their requirements do not
    apply.
    """

    def iterate(root: Path) -> Iterator[dict[str, Any]]:
        reader = Reader(root)
        return (reader[number] for number in reversed(range(len(reader))))

    found = outcomes("reader", iterate)
    assert {number for number, (status, _) in found.items() if status == "not applicable"} == {
        *("02", "08", "09", "10", "11")
    }
    assert {status for status, _ in found.values()} == {"passed", "not applicable"}, found


def test_reader_of_one_version_and_other_layouts() -> None:
    """Float images with channels first, tensors of v2.1 alone."""

    class OfV21(Reader):
        def check_version(self, version: str) -> None:
            if version != "v2.1":
                raise ValueError(f"version {version}")

        def image(self, camera: int, episode: int, frame: int) -> np.ndarray:
            return super().image(camera, episode, frame).transpose(2, 0, 1).astype(np.float32) / 255

    found = outcomes("reader", OfV21)
    assert {number for number, (status, _) in found.items() if status == "not applicable"} == {
        "12",
        "15",
    }
    assert {status for status, _ in found.values()} == {"passed", "not applicable"}, found


def test_reader_of_one_file_alone() -> None:
    """A reader that fails on several video files fails there, and is examined on one file."""

    class OneFile(Reader):
        def shown(self, camera: int, episode: int, frame: int) -> tuple[int, int]:
            if self.demo is V30:
                raise IndexError("the time lies behind the end of the file")
            return super().shown(camera, episode, frame)

    expect("reader", OneFile, "06")


def test_reader_that_opens_nothing() -> None:
    def fail(root: Path) -> Any:
        raise OSError("the disk is gone")

    found = outcomes("reader", fail)
    assert {status for status, _ in found.values()} == {"failed", "not applicable"}
    assert "OSError: the disk is gone" in found["01"][1]


# -- samplers --------------------------------------------------------------------------------------


class DropsTheTail(Sampler):
    def order(self) -> list[int]:
        return super().order()[:-10]


class WithReplacement(Sampler):
    def order(self) -> list[int]:
        return (
            np.random.default_rng([self.seed, self.epoch])
            .integers(self.total, size=self.total)
            .tolist()
        )


class RanksAlike(Sampler):
    def __iter__(self) -> Iterator[int]:
        return iter(self.order()[:: self.world_size])


class FillsUp(Sampler):
    """Ranks have equally many numbers: the last ones are filled up from the first ones."""

    def order(self) -> list[int]:
        order = super().order()
        return order + order[: 5 if self.world_size > 1 else 0]


class SameEachEpoch(Sampler):
    def order(self) -> list[int]:
        return np.random.default_rng(self.seed).permutation(self.total).tolist()


class Unseeded(Sampler):
    def order(self) -> list[int]:
        return np.random.default_rng().permutation(self.total).tolist()


class Rotates(Sampler):
    def order(self) -> list[int]:
        return np.roll(np.arange(self.total), 50 * self.epoch).tolist()


@pytest.mark.parametrize(
    ("sampler", "numbers"),
    [
        (Sampler, ""),
        (DropsTheTail, "01 02"),
        (WithReplacement, "01 02"),
        (RanksAlike, "02"),
        (FillsUp, "02"),
        (SameEachEpoch, "03"),
        (Unseeded, "02 04"),
        (Rotates, "05"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_sampler(sampler: type[Sampler], numbers: str) -> None:
    expect("sampler", sampler, numbers)


def test_endless_sampler() -> None:
    class Endless(Sampler):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield from super().__iter__()
                self.epoch += 1

    expect("sampler", Endless, "")


# -- loaders and resume ----------------------------------------------------------------------------


class LastBatchDropped(Loader):
    def shares(self) -> list[list[int]]:
        return [share for share in super().shares() if len(share) == self.batch_size]


class WorkersRepeat(Loader):
    def shares(self) -> list[list[int]]:
        return [share for share in super().shares() for _ in range(max(1, self.num_workers))]


class WorkersReverse(Loader):
    def shares(self) -> list[list[int]]:
        return super().shares()[:: -1 if self.num_workers else 1]


class RanksRepeat(Loader):
    """Each rank reads everything."""

    def shares(self) -> list[list[int]]:
        rest = self.order()[self.taken :]
        return [rest[i : i + self.batch_size] for i in range(0, len(rest), self.batch_size)]


class FirstRankHasMore(Loader):
    def shares(self) -> list[list[int]]:
        rest = self.order()[self.taken :]
        mine = rest[: -len(rest) // 3] if self.rank == 0 else rest[-len(rest) // 3 :]
        mine = rest if self.world_size == 1 else mine
        return [mine[i : i + self.batch_size] for i in range(0, len(mine), self.batch_size)]


class SameEpochAgain(Loader):
    def order(self) -> list[int]:
        return np.random.default_rng(self.seed).permutation(len(self.data)).tolist()


class SameEpochInWorkers(Loader):
    """Workers keep the epoch of their start, as in starVLA #470."""

    def order(self) -> list[int]:
        epoch = 0 if self.num_workers else self.epoch
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.data)).tolist()


class Random(Loader):
    def order(self) -> list[int]:
        return np.random.default_rng().permutation(len(self.data)).tolist()


class InOrder(Loader):
    def order(self) -> list[int]:
        return np.roll(np.arange(len(self.data)), self.epoch).tolist()


class Gathers(Loader):
    """One column of a batch is in another sequence."""

    def collate(self, samples: list[dict[str, Any]]) -> Any:
        batch = super().collate(samples)
        return batch | {"action": batch["action"][::-1]}


class OtherWindows(Loader):
    reader = PadsOneLate


class EndsEarly(Loader):
    reader = SkipsErrors


@pytest.mark.parametrize(
    ("loader", "numbers"),
    [
        (Loader, ""),
        (LastBatchDropped, "01 02 03 04"),
        (WorkersRepeat, "02 08"),
        (WorkersReverse, "08"),
        (RanksRepeat, "03"),
        (FirstRankHasMore, "04"),
        (SameEpochAgain, "05 06"),
        (SameEpochInWorkers, "06"),
        (Random, "03 07 08"),
        (InOrder, "11"),
        (Gathers, "09 10"),
        (OtherWindows, "10"),
        (EndsEarly, "12"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_loader(loader: type[Loader], numbers: str) -> None:
    expect("loader", loader, numbers)


class Endless(Loader):
    """A stream, whose batches cross the ends of epochs."""

    stream = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            start = self.stream + self.rank * self.batch_size
            self.stream += self.batch_size * self.world_size
            yield [self.data[self.number(start + i)] for i in range(self.batch_size)]

    def number(self, position: int) -> int:
        self.epoch, place = divmod(position, len(self.data))
        return self.order()[place]

    def state_dict(self) -> dict[str, int]:
        return {"stream": self.stream}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.stream = state["stream"]


def test_endless_loader() -> None:
    expect("loader", Endless, "")
    expect("resume", Endless, "")


class StartsAgainAfterLoad(Loader):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class ResumesOneLate(Loader):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]
        self.taken = state["taken"] + self.batch_size * self.world_size


class ResumesTheFirstEpoch(Loader):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = 0
        self.taken = state["taken"]


class CountsAhead(Loader):
    """The state counts a batch that workers have read, and the consumer has not."""

    def state_dict(self) -> dict[str, int]:
        ahead = self.batch_size if self.num_workers and self.taken else 0
        return {"epoch": self.epoch, "taken": self.taken + ahead}


class FillsFromTheRest(Loader):
    """Ranks fill the last batch from the samples that are left at the start of the loader, as
    Accelerate does.
    """

    def shares(self) -> list[list[int]]:
        rest = self.order()[self.taken :]
        size = self.batch_size * self.world_size
        rest += rest[: -len(rest) % size] if self.world_size > 1 else []
        steps = [rest[i : i + size] for i in range(0, len(rest), size)]
        return [step[self.rank :: self.world_size] for step in steps]


class CountsSteps(Loader):
    """The state counts steps, whose size changes with the ranks."""

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        return state | {"taken": state["taken"] // self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state | {"taken": state["taken"] * self.world_size})


class EndsOnceMore(Loader):
    """Behind the last batch, the state gives the same epoch again."""

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        return {"epoch": self.epoch, "taken": state["taken"]}


class SavingMoves(Loader):
    """A saved state changes the batches that follow."""

    def state_dict(self) -> dict[str, int]:
        state = super().state_dict()
        self.data.frames.reverse()
        return state


class AcceptsAnything(Loader):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.taken = state.get("epoch", 0), state.get("taken", 0)


class RefusesOtherRanks(Loader):
    def state_dict(self) -> dict[str, int]:
        return super().state_dict() | {"world": self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["world"] != self.world_size:
            raise ValueError("another number of ranks")
        super().load_state_dict(state)


@pytest.mark.parametrize(
    ("loader", "numbers"),
    [
        (Loader, ""),
        (RefusesOtherRanks, ""),
        (StartsAgainAfterLoad, "01 02 03 04 06"),
        (ResumesOneLate, "01 02 03 04 05 06"),
        (ResumesTheFirstEpoch, "02 05"),
        (CountsAhead, "03"),
        (FillsFromTheRest, "04 06"),
        (CountsSteps, "06"),
        (EndsOnceMore, "05"),
        (SavingMoves, "01 02 03 04"),
        (AcceptsAnything, "07"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_resume(loader: type[Loader], numbers: str) -> None:
    expect("resume", loader, numbers)


def test_resume_of_other_ranks_may_be_refused() -> None:
    assert outcomes("resume", RefusesOtherRanks)["06"][0] == "not applicable"


def test_resume_without_states() -> None:
    class Stateless:
        def __init__(self, root: Path, seed: int, batch_size: int) -> None:
            self.inner = Loader(root, 0, 1, 0, seed, batch_size)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.inner)

    found = outcomes("resume", Stateless)
    assert found["01"] == ("failed", "Stateless has no state_dict and load_state_dict")
    assert {number for number, (status, _) in found.items() if status == "not applicable"} == {
        "03",
        "04",
        "06",
    }


# -- seeds, statistics, weights --------------------------------------------------------------------


def fixed_seed(root: Path, seed: int) -> Iterator[int]:
    """The seed is silently 42, as in LeRobot #4871."""
    return first_indices(root, 42)


def seed_or_default(root: Path, seed: int) -> Iterator[int]:
    """Seed 0 counts as none."""
    return first_indices(root, seed or 42)


def global_generator(root: Path, seed: int) -> Iterator[int]:
    order = np.random.permutation(100)  # noqa: NPY002
    return iter(np.concatenate([order, [seed]])[::-1].tolist())


@pytest.mark.parametrize(
    ("factory", "numbers"),
    [(first_indices, ""), (fixed_seed, "01"), (seed_or_default, "01"), (global_generator, "02")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_seeds(factory: Callable[..., Any], numbers: str) -> None:
    expect("seeds", factory, numbers)
    assert outcomes("seeds", factory)["03"][0] == "not applicable"  # known by MODULE:FACTORY alone


def difference_of_squares(root: Path) -> dict[str, Any]:
    """As in LeRobot #4704."""
    out = compute_statistics(root)
    rows = np.array(
        [Reader(root).row(*place)["observation.state"] for place in demo_of(root).frames]
    )
    square = np.square(rows).mean(0) - np.square(rows.mean(0))
    return out | {
        "observation.state": out["observation.state"] | {"std": np.sqrt(np.maximum(square, 0))}
    }


def change(key: str, name: str, edit: Callable[[Any], Any]) -> Callable[[Path], dict[str, Any]]:
    def compute(root: Path) -> dict[str, Any]:
        out = compute_statistics(root)
        return out | {key: out[key] | {name: edit(out[key][name])}}

    return compute


def overflowing_squares(root: Path) -> dict[str, Any]:
    """As in LeRobot #3682."""
    out = compute_statistics(root)
    key = demo_of(root).cameras[0]
    pixels = np.full((100, 3), DARK, np.uint8)
    std = np.sqrt(
        np.maximum((pixels * pixels).mean(0) / 255**2 - np.square(pixels.mean(0) / 255), 0)
    )
    return out | {key: out[key] | {"std": std}}


def averaged_quantiles(root: Path) -> dict[str, Any]:
    """Quantiles of the whole are the means of those of the episodes."""
    demo = demo_of(root)
    out = compute_statistics(root)
    parts = []
    for episode, length in enumerate(demo.lengths):
        parts.append(
            moments(
                np.array(
                    [Reader(root).row(episode, i)["action"] for i in range(length)], np.float64
                )
            )
        )
    means = {
        name: np.mean([part[name] for part in parts], axis=0) for name in parts[0] if name[0] == "q"
    }
    return out | {"action": out["action"] | means}


@pytest.mark.parametrize(
    ("factory", "numbers"),
    [
        (compute_statistics, ""),
        (difference_of_squares, "01"),
        (change("action", "std", lambda std: std * np.sqrt(27 / 26)), "01"),
        (change("action", "max", lambda top: top.astype(np.float16) * 0.999), "02"),
        (change("observation.clock", "mean", np.float32), "03"),
        (change("observation.gripper", "std", lambda std: std[0]), "04"),
        (overflowing_squares, "05"),
        (averaged_quantiles, "06"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_statistics(factory: Callable[..., Any], numbers: str) -> None:
    expect("statistics", factory, numbers)


class ReturnsUntrained(Model):
    """An error of the load is printed, and the fresh model is returned, as in LeRobot #4577."""

    def load(self, folder: Path) -> dict[str, Any]:
        try:
            return super().load(folder)
        except Exception as error:
            print(f"could not load: {error}")
        return self.weights


class LoadsWhatFits(Model):
    def read(self, folder: Path) -> dict[str, Any]:
        import pickle

        state = pickle.loads((folder / "weights.pickle").read_bytes())
        return self.weights | {name: value for name, value in state.items() if name in self.weights}


class LosesATensor(Model):
    def read(self, folder: Path) -> dict[str, Any]:
        return super().read(folder) | {"b": self.weights["b"]}


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (Model, ""),
        (ReturnsUntrained, "02 03 04 05 06"),
        (LoadsWhatFits, "03 04 05"),
        (LosesATensor, "01"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_weights(model: type[Model], numbers: str) -> None:
    expect("weights", model, numbers)
