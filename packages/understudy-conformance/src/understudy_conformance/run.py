"""`check_loader`: all checks over one loader."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.errors import ConfigError
from understudy.process_rank import find_rank
from understudy_conformance.batch_values import Adapt, SampleNumbers
from understudy_conformance.content import Content, Tally
from understudy_conformance.foreign_calls import ForeignCalls
from understudy_conformance.make_loader import Epochs, Factory, LoadState, SaveState
from understudy_conformance.reading import Reader, Stretch
from understudy_conformance.results import CHECKS, LoaderCheck, LoaderReport
from understudy_conformance.resume import check_resume
from understudy_conformance.resume_ranks import check_resume_ranks, check_resume_world
from understudy_conformance.sample_order import (
    check_coverage,
    check_differ,
    check_equal,
    check_even,
    check_shuffling,
)
from understudy_conformance.workers import check_busy, mark_workers, unmark_workers


def check_loader(
    make_loader: Callable[..., Any],
    dataset: EpisodeDataset | str | Path,
    *,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    world_size: int = 2,
    num_workers: int = 2,
    adapt: Adapt | None = None,
    save_state: SaveState | None = None,
    load_state: LoadState | None = None,
    shuffled: bool = True,
    skip: Sequence[str] = (),
    max_batches: int | None = None,
    max_images: int = 200,
    show_progress: bool = False,
    timeout: float = 600,
) -> LoaderReport:
    """Check any loader of a dataset: coverage, content, order, resume and shuffle quality.

        report = check_loader(lambda rank, world_size, num_workers, epoch: ..., "path or hub id")
        print(report)
        assert report.passed

    The loader is read about ten times, in a thread of this process, one batch of each rank in turn. An endless loader
    is read for one epoch and one global batch. An error of the loader fails the check that read it. So does the error
    of a thread that the loader started, even if the loader waits for that thread forever.

    Args:
        make_loader: called with those of `rank`, `world_size`, `num_workers`, `epoch` and `seed` (0) that it takes, by
            name. Returns an iterable of batches: mappings of tensors, arrays or lists, or lists of samples. Their
            samples are known by `episode_index` and `frame_index`, by `index`, or by `episode_index` and `timestamp`.
            Without `epoch`, the loader is iterated once per epoch; an endless one continues.
        dataset: an `EpisodeDataset` with the selection and the windows of the loader, or a path, URL or hub id.
        delta_timestamps: windows of the loader, for a path.
        world_size: ranks of the checks of several ranks.
        num_workers: workers of the checks of several workers.
        adapt: makes a mapping under the dataset's keys of a loader's batch, such as renamed or unnormalized columns.
        save_state: called as save_state(loader, consumed) with a `Consumed` after some batches; returns a state.
        load_state: called as load_state(loader, state) with a fresh loader; may return another one. By default both
            are the loader's `state_dict` and `load_state_dict`.
        shuffled: False for a loader in storage order, which has neither other epochs nor a shuffle quality.
        skip: checks to leave out, keys of `CHECKS`.
        max_batches: batches to read of each epoch and rank. Coverage is then "not checked", unless a sample is
            repeated.
        max_images: images to decode for comparison.
        show_progress: whether to show progress on stderr, which needs the extra train.
        timeout: seconds to wait for one batch. A loader that takes longer fails all checks that are left.

    Raises:
        ConfigError: the samples of a batch cannot be identified, an argument is out of range, or this is one of several
            processes and `make_loader` takes no `rank` and `world_size`.
        DatasetError: the dataset cannot be read.
    """
    begin = time.monotonic()
    factory, process = Factory(make_loader), find_rank()
    if process.world_size > 1 and not factory.takes("rank", "world_size"):
        raise ConfigError(
            f"this process is rank {process.rank} of {process.world_size}, and make_loader takes no `rank` and "
            "`world_size`: its loaders give this rank's share alone; let it take both, or check in one process"
        )
    if unknown := sorted(set(skip) - set(CHECKS)):
        raise ConfigError(f"skip names {unknown[0]!r}; the checks are {', '.join(CHECKS)}")
    for name, value, least in (("world_size", world_size, 2), ("num_workers", num_workers, 1)):
        if value < least:
            raise ConfigError(f"{name} is {value}; give {least} or more")
    if max_batches is not None and max_batches < 2:
        raise ConfigError(f"max_batches is {max_batches}; give 2 or more")
    if not timeout > 0:
        raise ConfigError(f"timeout is {timeout}; give seconds above 0")
    if (save_state is None) != (load_state is None):
        raise ConfigError("save_state and load_state belong together; give both or neither")
    if isinstance(dataset, EpisodeDataset):
        if delta_timestamps is not None:
            raise ConfigError("delta_timestamps belong to a path; an open EpisodeDataset has its own")
        data = dataset
    else:
        data = EpisodeDataset(dataset, delta_timestamps)
    numbers = SampleNumbers(data)
    epoch = len(numbers) if max_batches is None else min(len(numbers), max_batches * 32)
    with ExitStack() as stack, warnings.catch_warnings():
        update: Callable[[int], None] = _ignore
        if show_progress:
            from understudy.progress import Progress  # needs the extra train

            update = stack.enter_context(Progress(10 * epoch, "loader", "sample")).update
        reader = Reader(numbers, adapt, update, stack.enter_context(ForeignCalls(timeout)))
        hooks = (save_state, load_state) if save_state is not None and load_state is not None else None
        warnings.filterwarnings("ignore", "a loader was given rank=0")  # the check of one rank means it
        checks = _Checks(factory, reader, data, max_batches, frozenset(skip), hooks)
        results = checks.run(world_size, num_workers, shuffled, max_images)
    return LoaderReport(
        dataset=str(data.catalog.root),
        samples=len(numbers),
        checks=tuple(results[name] for name in CHECKS),
        batches=reader.batches,
        seconds=time.monotonic() - begin,
    )


def _ignore(samples: int) -> None:
    """Show no progress."""


class _Checks:
    """The checks of one loader, in sequence. A check whose premise failed is not made."""

    def __init__(
        self,
        factory: Factory,
        reader: Reader,
        data: EpisodeDataset,
        max_steps: int | None,
        skip: frozenset[str],
        hooks: tuple[SaveState, LoadState] | None,
    ) -> None:
        self._factory, self._reader, self._data, self._max_steps = factory, reader, data, max_steps
        self._numbers, self._skip, self._hooks = reader.numbers, skip, hooks
        self._found = {
            name: LoaderCheck(name, "not applicable", "skipped by the caller") for name in CHECKS if name in skip
        }

    def run(self, world_size: int, num_workers: int, shuffled: bool, max_images: int) -> dict[str, LoaderCheck]:
        content = Content(self._data, max_images)
        stretches = self._read(epochs=2, content=content)
        self._put(check_coverage("coverage", self._numbers, self._contiguous(stretches)))
        self._put_content(content)
        if stretches[0].end == "error" or not stretches[0].samples:
            reason = stretches[0].error or "it has no batches"
            for name in CHECKS:
                self._put_missing(name, f"one process cannot read an epoch: {reason}")
            return self._found
        self._check_epochs(stretches, shuffled)
        ranks = self._check_ranks(world_size)
        workers = self._check_workers(num_workers, stretches[0])
        if "resume" not in self._skip:
            epochs = [stretch for stretch in stretches if stretch.end != "error" and stretch.samples]
            self._put(
                check_resume(
                    self._factory,
                    self._reader,
                    epochs,
                    num_workers=workers,
                    limit=len(self._numbers),
                    max_steps=self._max_steps,
                    hooks=self._hooks,
                )
            )
        self._check_resumed_ranks(ranks, world_size)
        for name in CHECKS:
            self._put_missing(name, "not reached")
        return self._found

    def _put(self, check: LoaderCheck) -> None:
        self._found.setdefault(check.name, check)

    def _put_missing(self, name: str, reason: str) -> None:
        self._put(LoaderCheck(name, "not checked", reason))

    def _read(self, world_size: int = 1, num_workers: int = 0, epochs: int = 1, content: Any = None) -> list[Stretch]:
        """Read epochs 0, 1, ...; the content of the first is compared with the dataset."""
        marks = (mark_workers, unmark_workers) if num_workers else ()
        loaders = Epochs(self._factory, self._reader.calls, world_size, num_workers, *marks)
        stretches = list[Stretch]()
        try:
            for epoch in range(epochs):
                endless = bool(stretches) and stretches[-1].end == "limit"
                stretches.append(
                    self._reader.read(
                        partial(loaders.begin, epoch, endless),
                        limit=len(self._numbers),
                        max_steps=self._max_steps,
                        visit=content.visit if content is not None and not epoch else None,
                    )
                )
                if stretches[-1].end == "error":
                    break
        finally:
            loaders.close()
        return stretches

    def _contiguous(self, epochs: list[Stretch]) -> list[Stretch]:
        """Epochs of which each begins where the one before ends."""
        apart = epochs[0].end == "limit" and self._factory.takes("epoch")
        return epochs[:1] if apart or (len(epochs) > 1 and not epochs[1].samples) else epochs

    def _put_content(self, content: Content) -> None:
        windows, cameras = set(self._data.offsets), {*self._data.video_keys, *self._data.image_keys}
        left_out = content.not_compared
        for name, tally, applies in (
            ("rows", content.rows, True),
            ("windows", content.windows, bool(windows - cameras)),
            ("padding", content.padding, bool(windows)),
            ("images", content.images, bool(cameras)),
        ):
            key_sets = {
                "images": cameras,
                "windows": windows - cameras,
                "padding": {f"{key}_is_pad" for key in windows},
            }
            other = set[str]().union(*key_sets.values())
            missing = {
                k: why for k, why in left_out.items() if (k in key_sets[name] if name in key_sets else k not in other)
            }
            self._put(_describe(name, tally, missing, applies))

    def _check_epochs(self, stretches: list[Stretch], shuffled: bool) -> None:
        if "epochs.repeat" not in self._skip:
            again = self._read()[0]
            self._put(check_equal("epochs.repeat", stretches[0], again, "epoch 0 of another loader"))
        if not shuffled:
            for name in ("epochs.differ", "shuffling"):
                self._put(LoaderCheck(name, "not applicable", "shuffled=False"))
            return
        self._put(check_shuffling(self._numbers, stretches[0]))
        if len(stretches) < 2 or not stretches[1].samples:
            self._put_missing("epochs.differ", "the loader ended after one epoch: let make_loader take `epoch`")
        elif stretches[1].end == "error":
            self._put(LoaderCheck("epochs.differ", "failed", f"the loader failed in epoch 1: {stretches[1].error}"))
        else:
            total, first, second = len(self._numbers), stretches[0].numbers, stretches[1].numbers
            if stretches[0].end == "limit" and not self._factory.takes("epoch"):
                second = np.concatenate([first, second])[total : 2 * total]
            self._put(check_differ(first[:total], second[:total]))

    def _check_ranks(self, world_size: int) -> Stretch | None:
        """Check several ranks, and return their epoch 0 where they can be read."""
        names = ("coverage.ranks", "ranks.even", "resume.ranks", "resume.world")
        if not self._factory.takes("rank", "world_size"):
            for name in names:
                self._put_missing(name, "make_loader takes no `rank` and `world_size`")
            return None
        if self._skip.issuperset(names):
            return None
        ranks = self._read(world_size=world_size, epochs=2)
        self._put_coverage("coverage.ranks", ranks)
        self._put(
            check_even(ranks[0], world_size)
            if ranks[0].end != "error"
            else LoaderCheck("ranks.even", "not checked", f"the loader failed: {ranks[0].error}")
        )
        return ranks[0] if ranks[0].end != "error" else None

    def _check_resumed_ranks(self, stretch: Stretch | None, world_size: int) -> None:
        limit, premise = len(self._numbers), self._found["resume"].status
        for name in ("resume.ranks", "resume.world"):
            if name in self._found:
                continue
            if stretch is None:
                self._put_missing(name, "several ranks cannot be read")
            elif premise == "not checked":
                self._put_missing(name, self._found["resume"].detail)
            elif name == "resume.ranks":
                cut = self._max_steps is not None
                made = (self._factory, self._reader, self._hooks, stretch, world_size, limit)
                self._put(check_resume_ranks(*made, cut))
            elif self._max_steps is not None:
                self._put_missing(name, "max_batches ended the epoch")
            elif self._found["coverage"].status == "failed":
                self._put_missing(name, "one process alone does not cover an epoch")
            else:
                made = (self._factory, self._reader, self._hooks, stretch, world_size, limit)
                self._put(check_resume_world(*made))

    def _check_workers(self, num_workers: int, alone: Stretch) -> int:
        """Check several workers, and return the number with which the loader works."""
        if not self._factory.takes("num_workers"):
            for name in ("coverage.workers", "workers.same", "workers.busy"):
                self._put(LoaderCheck(name, "not applicable", "make_loader takes no `num_workers`"))
            return 0
        if self._skip.issuperset(("coverage.workers", "workers.same", "workers.busy")):
            return 0
        workers = self._read(num_workers=num_workers, epochs=2)
        self._put_coverage("coverage.workers", workers)
        if workers[0].end != "error":
            self._put(check_busy(workers[0], num_workers))
        if self._found["coverage.workers"].status == "failed":
            self._put_missing("workers.same", f"{num_workers} workers do not cover an epoch")
            return 0
        self._put(check_equal("workers.same", alone, workers[0], f"{num_workers} workers"))
        return num_workers

    def _put_coverage(self, name: str, epochs: list[Stretch]) -> None:
        """Coverage of several ranks or workers: checked where one process covers an epoch."""
        check = check_coverage(name, self._numbers, self._contiguous(epochs))
        if check.status == "failed" and epochs[0].end != "error" and self._found["coverage"].status == "failed":
            check = replace(check, status="not checked", detail="one process alone does not cover an epoch")
        self._put(check)


def _describe(name: str, tally: Tally, missing: Mapping[str, str], applies: bool) -> LoaderCheck:
    """Result of comparisons."""
    if not applies:
        return LoaderCheck(name, "not applicable", "the dataset has none")
    left_out = "; ".join(f"{key}: {why}" for key, why in sorted(missing.items()))
    measured = {"compared": tally.compared, "wrong": tally.wrong, "keys": sorted(tally.keys), "left_out": dict(missing)}
    if tally.wrong:
        share = f"{tally.wrong:,} of {tally.compared:,} comparisons differ: {', '.join(tally.examples)}"
        return LoaderCheck(name, "failed", share, measured)
    if not tally.compared:
        return LoaderCheck(name, "not checked", left_out or "nothing could be compared", measured)
    detail = f"{tally.compared:,} comparisons of {', '.join(sorted(tally.keys))}"
    return LoaderCheck(name, "passed", detail + (f"; left out {left_out}" if left_out else ""), measured)
