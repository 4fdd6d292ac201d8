"""`check_loader` passes our loaders in all checks and names the fault of each planted one by exactly one check."""

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.datasets import Spec, write_dataset
from tests.support.refusals import refused
from tests.support.weights import count_frames, write_weights
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

import understudy as us
from understudy.errors import ConfigError
from understudy_conformance import CHECKS, LoaderReport, check_loader

TOP = "observation.images.top"
WINDOWS = {"action": [-0.1, 0.0, 0.1, 0.2]}
BATCH = 8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loaders") / "set"
    write_dataset(root, Spec(lengths=(13, 17, 11, 6)))
    return root


@pytest.fixture(scope="module")
def data(root: Path) -> us.EpisodeDataset:
    return us.EpisodeDataset(root, WINDOWS)


@pytest.fixture(scope="module")
def samples(data: us.EpisodeDataset) -> list[dict[str, Any]]:
    return [data[i] for i in range(len(data))]


def statuses(report: LoaderReport) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


@dataclass
class Toy:
    """A correct loader over samples in memory: epochs of whole and one short batch, any ranks, a state.

    Faults are overridden methods.
    """

    samples: list[dict[str, Any]]
    rank: int = 0
    world_size: int = 1
    num_workers: int = 0
    epoch: int = 0
    start: int = 0

    def order(self) -> list[int]:
        return np.random.default_rng([7, self.epoch]).permutation(len(self.samples)).tolist()

    def sample(self, number: int) -> dict[str, Any]:
        return self.samples[number]

    def batches(self) -> list[list[int]]:
        order = self.order()
        share = -(-BATCH // self.world_size)
        steps = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
        return [step[self.rank * share : (self.rank + 1) * share] for step in steps]

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches()[self.start :]:
            self.start += 1
            if batch:
                yield default_collate([self.sample(number) for number in batch])
        self.start = 0

    def state_dict(self) -> dict[str, int]:
        return {"start": self.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["start"]


class RepeatsTheEpoch(Toy):
    def order(self) -> list[int]:
        return np.random.default_rng(7).permutation(len(self.samples)).tolist()


class DropsTheTail(Toy):
    def order(self) -> list[int]:
        return super().order()[: -(len(self.samples) % BATCH)]


class OtherRow(Toy):
    def sample(self, number: int) -> dict[str, Any]:
        state = self.samples[(number + 1) % len(self.samples)]["observation.state"]
        return self.samples[number] | {"observation.state": state}


class OtherImage(Toy):
    def sample(self, number: int) -> dict[str, Any]:
        return self.samples[number] | {TOP: self.samples[max(0, number - 1)][TOP]}


class OtherWindow(Toy):
    def sample(self, number: int) -> dict[str, Any]:
        return self.samples[number] | {"action": self.samples[number]["action"].roll(1, 0)}


class NoPadding(Toy):
    def sample(self, number: int) -> dict[str, Any]:
        return self.samples[number] | {"action_is_pad": torch.zeros(4, dtype=torch.bool)}


class ResumesOneLate(Toy):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["start"] + 1


class ResumesTheFirstEpoch(Toy):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start, self.epoch = state["start"], 0


class WorkersRepeat(Toy):
    def batches(self) -> list[list[int]]:
        return [batch for batch in super().batches() for _ in range(max(1, self.num_workers))]


class WorkersInAnotherOrder(Toy):
    def batches(self) -> list[list[int]]:
        return super().batches()[:: -1 if self.num_workers else 1]


class RanksRepeat(Toy):
    def batches(self) -> list[list[int]]:
        order = self.order()
        return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


class FirstRankHasAll(Toy):
    def batches(self) -> list[list[int]]:
        return [] if self.rank else Toy(self.samples, epoch=self.epoch).batches()


class FillsFromTheRest(Toy):
    """Ranks fill the last batch from the samples that are left at the start of the loader, as Accelerate does."""

    def batches(self) -> list[list[int]]:
        rest, share = self.order()[self.start * BATCH :], BATCH // self.world_size
        rest += rest[: -len(rest) % BATCH] if self.world_size > 1 else []
        steps = [[]] * self.start + [rest[i : i + BATCH] for i in range(0, len(rest), BATCH)]
        return [step[self.rank * share : (self.rank + 1) * share] for step in steps]


@dataclass
class CountsSteps(Toy):
    """Its place is steps times today's global batch, which grows with the ranks, as in LeRobot's training script."""

    step: int = 0
    place: int = 0

    def __iter__(self) -> Iterator[Any]:
        rest, size = self.order()[self.place :], BATCH * self.world_size
        for i in range(0, len(rest), size):
            self.step += 1
            if batch := rest[i : i + size][self.rank * BATCH : (self.rank + 1) * BATCH]:
                yield default_collate([self.sample(number) for number in batch])
        self.step = self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "size": BATCH * self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.place = state["step"], state["step"] * state["size"]


class RefusesOtherRanks(Toy):
    def state_dict(self) -> dict[str, int]:
        return {"start": self.start, "world": self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["world"] != self.world_size:
            raise ValueError("another number of ranks")
        super().load_state_dict(state)


class ThreadDies(Toy):
    """Waits forever for a thread that has failed."""

    def __iter__(self) -> Iterator[Any]:
        made: queue.Queue[Any] = queue.Queue()

        def produce() -> None:
            for batch in self.batches()[:2]:
                made.put(default_collate([self.sample(number) for number in batch]))
            raise OSError("the disk is gone")

        threading.Thread(target=produce, daemon=True).start()
        while True:
            yield made.get()


class NeverAnswers(Toy):
    def __iter__(self) -> Iterator[Any]:
        yield queue.Queue[Any]().get()


class Unseeded(Toy):
    calls = 0

    def order(self) -> list[int]:
        Unseeded.calls += 1
        return np.random.default_rng([Unseeded.calls]).permutation(len(self.samples)).tolist()


class InOrder(Toy):
    def order(self) -> list[int]:
        return np.roll(np.arange(len(self.samples)), self.epoch).tolist()


class Breaks(Toy):
    def sample(self, number: int) -> dict[str, Any]:
        raise OSError("the disk is gone")


def check(toy: type[Toy], data: us.EpisodeDataset, samples: list[dict[str, Any]], **options: Any) -> LoaderReport:
    def make_loader(rank: int, world_size: int, num_workers: int, epoch: int) -> Toy:
        return toy(samples, rank, world_size, num_workers, epoch)

    return check_loader(make_loader, data, **options)


def test_check_loader_passes_a_correct_loader(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    # FirstRankHasAll's opposite: ranks of a short last batch may differ, which `ranks.even` reports.
    report = check(Toy, data, samples, skip=["ranks.even"])
    assert report.passed
    assert set(statuses(report)) == set(CHECKS)
    assert report["rows"].measured["compared"] >= 7 * len(data)
    assert report["images"].measured["compared"] >= 6
    assert json.loads(json.dumps(report.to_json()))["checks"]["coverage"]["missing"] == 0


def test_check_loader_counts_copies_of_frames(
    root: Path, data: us.EpisodeDataset, samples: list[dict[str, Any]], tmp_path: Path
) -> None:
    frames = sorted(count_frames(data.segments))
    weights = {frame: float(i % 3) for i, frame in enumerate(frames)}
    path = write_weights(tmp_path / "w.parquet", weights)
    weighted = us.EpisodeDataset(root, WINDOWS, frame_weights=path, frame_weights_in="order")
    copies = [sample for i, sample in enumerate(samples) for _ in range(i % 3)]
    report = check(Toy, weighted, copies, skip=["ranks.even"])
    assert report.passed
    assert report.samples == len(copies)
    few = {"skip": [name for name in CHECKS if name != "coverage"], "max_images": 0}
    once = [sample for i, sample in enumerate(samples) if i % 3]
    for given, missing, doubled, foreign in [(once, 15, 0, 0), (samples, 15, 0, 16), ([*copies, *copies[:4]], 0, 4, 0)]:
        found = check(Toy, weighted, given, **few)["coverage"]
        assert found.measured == {"missing": missing, "doubled": doubled, "foreign": foreign}


@pytest.mark.parametrize(
    ("toy", "name", "unchecked"),
    [
        (RepeatsTheEpoch, "epochs.differ", set()),
        (DropsTheTail, "coverage", {"coverage.ranks", "coverage.workers", "workers.same", "resume.world"}),
        (OtherRow, "rows", set()),
        (OtherImage, "images", set()),
        (OtherWindow, "windows", set()),
        (NoPadding, "padding", set()),
        (ResumesTheFirstEpoch, "resume", set()),
        (CountsSteps, "resume.world", set()),
        (WorkersRepeat, "coverage.workers", {"workers.same"}),
        (WorkersInAnotherOrder, "workers.same", set()),
        (InOrder, "shuffling", set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_check_loader_names_a_planted_fault(
    toy: type[Toy], name: str, unchecked: set[str], data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    report = check(toy, data, samples, skip=["ranks.even"])
    assert report.failed == (name,)
    assert {key for key, status in statuses(report).items() if status == "not checked"} <= unchecked
    assert not report.passed


@pytest.mark.parametrize(
    ("toy", "failed"),
    [
        (ResumesOneLate, ("resume", "resume.ranks", "resume.world")),
        (RanksRepeat, ("coverage.ranks", "resume.world")),
        (FillsFromTheRest, ("coverage.ranks", "resume.ranks")),
    ],
)
def test_check_loader_names_faults_of_several_checks(
    toy: type[Toy], failed: tuple[str, ...], data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    assert check(toy, data, samples, skip=["ranks.even"]).failed == failed


def test_check_loader_measures_repeats_after_a_change_of_ranks(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    assert check(CountsSteps, data, samples)["resume.world"].measured == {"missing": 0, "doubled": BATCH, "foreign": 0}
    report = check(RefusesOtherRanks, data, samples, skip=["ranks.even"])
    assert report.passed
    assert report["resume.world"].status == "not applicable"


def test_check_loader_sees_episodes_that_were_not_chosen(root: Path, samples: list[dict[str, Any]]) -> None:
    chosen = us.EpisodeDataset(root, WINDOWS, episodes=[1])
    report = check(Toy, chosen, samples, max_images=0)
    assert "coverage" in report.failed
    measured = report["coverage"].measured  # of as many samples as were chosen
    assert 0 < measured["foreign"] == measured["missing"]


class Shares(IterableDataset[dict[str, Any]]):
    """Samples of a stream whose `busy` first workers have all."""

    def __init__(self, samples: list[dict[str, Any]], busy: int) -> None:
        self.samples, self.busy = samples, busy

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        number = 0 if info is None else info.id
        if info is None or number < self.busy:
            yield from self.samples[number :: 1 if info is None else self.busy]


@pytest.mark.parametrize(("busy", "status"), [(1, "failed"), (2, "passed")])
def test_check_loader_names_idle_workers(
    busy: int, status: str, data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    made: list[DataLoader[Any]] = []

    def make_loader(num_workers: int) -> DataLoader[Any]:
        made.append(DataLoader(Shares(samples, busy), batch_size=4, num_workers=num_workers))
        return made[-1]

    others = [name for name in CHECKS if name not in ("coverage.workers", "workers.busy")]
    report = check_loader(make_loader, data, skip=others, max_images=0)
    assert (report["coverage.workers"].status, report["workers.busy"].status) == ("passed", status)
    counts = report["workers.busy"].measured["samples"]
    assert (sum(counts), min(counts)) == (len(samples), len(samples) // 2 if busy == 2 else 0)
    assert {loader.collate_fn for loader in made} == {default_collate}  # as it was


def in_time(work: Callable[[], LoaderReport], seconds: float = 60) -> LoaderReport:
    """Result of a check, which ends in time."""
    found: list[LoaderReport] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"the check waits after {seconds} s"
    return found[0]


def test_check_loader_ends_with_the_error_of_a_thread(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    hook = threading.excepthook
    report = in_time(lambda: check(ThreadDies, data, samples))
    assert report.failed == ("coverage",)
    assert "OSError: the disk is gone" in report["coverage"].measured["error"]
    assert {s for name, s in statuses(report).items() if name not in ("coverage", "rows", "windows", "padding")} <= {
        "not checked",
        "not applicable",
        "passed",
    }
    assert threading.excepthook is hook
    assert check(Toy, data, samples, skip=["ranks.even"]).passed  # and the next check works


def test_check_loader_gives_up_after_the_timeout(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    report = in_time(lambda: check(NeverAnswers, data, samples, timeout=0.2))
    assert report.failed == ("coverage",)
    assert "timeout" in report["coverage"].measured["error"]
    with refused("timeout", 0, kind=ConfigError):
        check(Toy, data, samples, timeout=0)


class WorkerDies(Shares):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            os._exit(3)
        yield from self.samples


def test_check_loader_ends_with_a_dead_worker(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    def make_loader(num_workers: int) -> DataLoader[Any]:
        return DataLoader(WorkerDies(samples, 2), batch_size=4, num_workers=num_workers)

    others = [name for name in CHECKS if name != "coverage.workers"]
    report = in_time(lambda: check_loader(make_loader, data, skip=others, max_images=0))
    assert report.failed == ("coverage.workers",)
    assert "RuntimeError" in report["coverage.workers"].measured["error"]


def test_check_loader_names_uneven_ranks(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    report = check(FirstRankHasAll, data, samples)
    assert report.failed == ("ranks.even",)
    assert report["ranks.even"].measured["batches"] == [6, 0]


def test_check_loader_counts_missing_samples(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    measured = check(DropsTheTail, data, samples)["coverage"].measured
    assert measured == {"missing": len(data) % BATCH, "doubled": 0, "foreign": 0}


def test_check_loader_sees_that_an_epoch_cannot_be_repeated(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    report = check(
        Unseeded,
        data,
        samples,
        skip=["ranks.even", "resume", "resume.ranks", "resume.world", "coverage.ranks", "workers.same"],
    )
    assert report.failed == ("epochs.repeat",)


def test_check_loader_reports_the_error_of_a_loader(data: us.EpisodeDataset, samples: list[dict[str, Any]]) -> None:
    report = check(Breaks, data, samples)
    assert report.failed == ("coverage",)
    assert report["coverage"].measured["error"] == "OSError: the disk is gone"
    assert report["resume"].status == "not checked"


def test_check_loader_ends_with_a_loader_of_empty_or_endless_batches(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    first = default_collate(samples[:BATCH])

    def repeat(batch: dict[str, Any]) -> Callable[[], Iterator[Any]]:
        def make_loader() -> Iterator[Any]:
            while True:
                yield batch

        return make_loader

    report = check_loader(repeat(first), data)
    assert report["coverage"].measured["missing"] == len(data) - BATCH
    assert report.batches < 10 * len(data) / BATCH
    empty = {key: value[:0] for key, value in first.items()}
    assert check_loader(repeat(empty), data).failed == ("coverage",)


def test_check_loader_without_hooks_does_not_check_what_it_cannot(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    """Lists of samples, identified by `index` alone, and a loader that is only iterable."""

    def make_loader() -> list[list[dict[str, Any]]]:
        order = np.random.default_rng(0).permutation(len(samples))
        keep = ("index", "action")
        return [[{k: samples[i][k] for k in keep} for i in order[j : j + BATCH]] for j in range(0, len(order), BATCH)]

    report = check_loader(make_loader, data)
    found = statuses(report)
    assert found["coverage"] == found["rows"] == found["windows"] == found["epochs.repeat"] == "passed"
    assert found["epochs.differ"] == "failed"  # the same list again
    for name in ("padding", "images", "resume", "resume.ranks", "coverage.ranks", "ranks.even", "resume.world"):
        assert found[name] == "not checked", name
    for name in ("coverage.workers", "workers.same", "workers.busy"):
        assert found[name] == "not applicable", name
    assert not report.passed


def test_check_loader_with_max_batches_does_not_claim_coverage(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    report = check(Toy, data, samples, max_batches=4, skip=["ranks.even"])
    assert report.failed == ()
    assert report["coverage"].status == "not checked"
    assert report["resume"].status == "passed"


def test_check_loader_accepts_float_images_of_another_layout(
    data: us.EpisodeDataset, samples: list[dict[str, Any]]
) -> None:
    def adapt(batch: Any) -> dict[str, Any]:
        return {**batch, TOP: batch[TOP].permute(0, 2, 3, 1).float() / 255, "action": batch["action"].numpy()}

    options: dict[str, Any] = {"adapt": adapt, "skip": ["ranks.even"]}
    assert check(Toy, data, samples, **options).passed
    assert check(OtherImage, data, samples, **options).failed == ("images",)


def test_check_loader_refuses_batches_without_a_place(data: us.EpisodeDataset) -> None:
    with pytest.raises(ConfigError):
        check_loader(lambda: [{"action": np.zeros((4, 2))}], data)
    with pytest.raises(ConfigError):
        check_loader(lambda: [3], data)
    with pytest.raises(ConfigError):
        check_loader(list, data, skip=["coverages"])


def test_check_loader_in_one_of_several_processes(
    root: Path, data: us.EpisodeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError):
        check_loader(lambda: us.Loader(root, batch_size=BATCH), data)


def test_check_loader_passes_loader(root: Path, data: us.EpisodeDataset) -> None:
    def make_loader(rank: int, world_size: int, num_workers: int) -> us.Loader:
        options: dict[str, Any] = {"delta_timestamps": WINDOWS, "num_threads": num_workers + 1, "seed": 0}
        return us.Loader(root, batch_size=BATCH, rank=rank, world_size=world_size, **options)

    report = check_loader(make_loader, data)
    found = statuses(report)
    assert found.pop("workers.busy") == "not applicable"  # of a DataLoader alone
    assert set(found.values()) == {"passed"}, str(report)


def test_check_loader_passes_episode_stream(root: Path, data: us.EpisodeDataset) -> None:
    def make_loader(rank: int, world_size: int, num_workers: int) -> DataLoader[Any]:
        options: dict[str, Any] = {"delta_timestamps": WINDOWS, "seed": 0}
        stream = us.EpisodeStream(root, batch_size=BATCH, rank=rank, world_size=world_size, **options)
        return DataLoader(stream, batch_size=None, num_workers=num_workers)

    def load_state(loader: Any, state: Any) -> None:
        loader.dataset.load_state_dict(state)

    report = check_loader(
        make_loader,
        data,
        save_state=lambda loader, consumed: loader.dataset.state_after(consumed.batch),
        load_state=load_state,
    )
    assert set(statuses(report).values()) == {"passed"}, str(report)


@pytest.mark.long
@pytest.mark.parametrize("by_epoch", [True, False], ids=["set_epoch", "iterated again"])
def test_check_loader_passes_episode_sampler(root: Path, data: us.EpisodeDataset, by_epoch: bool) -> None:
    def make_loader(rank: int, world_size: int, num_workers: int, epoch: int = 0) -> DataLoader[Any]:
        sampler = us.EpisodeSampler(data, seed=0, batch_size=BATCH, rank=rank, world_size=world_size)
        sampler.set_epoch(epoch)
        return DataLoader(data, sampler=sampler, batch_size=BATCH // world_size, num_workers=num_workers)

    def again(rank: int, world_size: int, num_workers: int) -> DataLoader[Any]:
        return make_loader(rank, world_size, num_workers)

    report = check_loader(
        make_loader if by_epoch else again,
        data,
        save_state=lambda loader, consumed: loader.sampler.state_dict(consumed.samples),
        load_state=lambda loader, state: loader.sampler.load_state_dict(state),
    )
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_check_loader_closes_loaders_of_each_epoch(data: us.EpisodeDataset) -> None:
    """A loader with `close` and a factory that takes `epoch`: each check ends, also those that resume."""

    def make(rank: int, world_size: int, epoch: int) -> us.Loader:
        return us.Loader(data, batch_size=BATCH, seed=epoch, rank=rank, world_size=world_size)

    report = in_time(lambda: check_loader(make, data, timeout=20))
    assert set(statuses(report).values()) == {"passed", "not applicable"}, str(report)
    assert report["resume.ranks"].status == "passed"


def test_check_loader_passes_a_loader_without_workers(data: us.EpisodeDataset) -> None:
    def make(rank: int, world_size: int) -> us.Loader:
        return us.Loader(data, batch_size=BATCH, seed=0, rank=rank, world_size=world_size)

    report = check_loader(make, data, skip=["ranks.even"])
    assert report["workers.same"].status == "not applicable"
    assert report.passed, report


def test_understudy_never_imports_the_kit() -> None:
    source = Path(us.__file__).parent
    assert [path for path in source.rglob("*.py*") if "understudy_conformance" in path.read_text(errors="ignore")] == []
