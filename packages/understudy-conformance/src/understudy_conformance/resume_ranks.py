"""Resume of several ranks, with as many ranks and with another number of them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from understudy_conformance.make_loader import Consumed, Factory, LoadState, SaveState, close_loader, default_hooks
from understudy_conformance.reading import Reader, Stretch
from understudy_conformance.results import LoaderCheck
from understudy_conformance.sample_order import check_equal, describe_samples, is_epoch

Hooks = tuple[SaveState, LoadState]


class NoHooks(Exception):
    """The loader has no states."""


class RanksAtOnce:
    """Loaders of all ranks in epoch 0, fresh or resumed; a context manager, which ends them.

    Args:
        factory: makes the loaders.
        reader: reads their batches.
        hooks: functions that save and load a state; None for those of the loader.
        world_size: number of ranks.

    Attributes:
        refused: error of `load_state`, one line.
    """

    def __init__(self, factory: Factory, reader: Reader, hooks: Hooks | None, world_size: int) -> None:
        self._factory, self._reader, self._hooks, self._world_size = factory, reader, hooks, world_size
        self._loaders: list[Any] = []
        self._iterators: list[Iterator[Any]] = []
        self._taken = Stretch()
        self.refused = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for loader in self._loaders:
            close_loader(loader, self._reader.calls)

    def read(self, states: list[Any] | None = None, **limits: Any) -> Stretch:
        """Read from the beginning, or each rank from its state; see `Reader.read`."""
        self._taken = self._reader.read(partial(self._start, states), **limits)
        return self._taken

    def go_on(self, **limits: Any) -> Stretch:
        """Read on."""
        return self._reader.read(lambda: self._iterators, **limits)

    def _start(self, states: list[Any] | None) -> list[Iterator[Any]]:
        for rank in range(self._world_size):
            loader = self._factory.make(rank=rank, world_size=self._world_size)
            self._loaders.append(loader)
            if states is not None:
                try:
                    changed = self._hooks_of(loader)[1](loader, states[rank])
                except Exception as error:
                    self.refused = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                    raise
                self._loaders[-1] = loader if changed is None else changed
        self._iterators = [iter(loader) for loader in self._loaders]
        return self._iterators

    def _hooks_of(self, loader: Any) -> Hooks:
        hooks = self._hooks or default_hooks(loader)
        if hooks is None:
            words = "has no state_dict and load_state_dict: give save_state and load_state"
            raise NoHooks(f"{type(loader).__name__} {words}")
        return hooks

    def save(self, batches: int, samples: int) -> list[Any]:
        """Return the state of each rank.

        Args:
            batches: batches that each rank has taken in this epoch.
            samples: samples that all ranks have taken.

        Raises:
            NoHooks: the loader has no states. Exception: that of the loader.
        """
        consumed = Consumed(0, batches, samples, None, self._world_size)
        lasts = self._taken.lasts
        return [
            self._reader.calls.call(
                partial(self._hooks_of(loader)[0], loader, replace(consumed, batch=lasts.get(rank, self._taken.last)))
            )
            for rank, loader in enumerate(self._loaders)
        ]


def check_resume_ranks(
    factory: Factory, reader: Reader, hooks: Hooks | None, stretch: Stretch, world_size: int, limit: int, cut: bool
) -> LoaderCheck:
    """Resume all ranks in the middle of epoch 0, and compare them with those that went on.

    Args:
        factory: makes the loaders.
        reader: reads their batches.
        hooks: see `RanksAtOnce`.
        stretch: the epoch, as these ranks read it.
        world_size: number of ranks.
        limit: samples of an epoch.
        cut: whether only the batches of `stretch` are to be read.
    """
    name, count = "resume.ranks", stretch.steps // 2
    if not count:
        return LoaderCheck(name, "not checked", f"a rank has {stretch.steps} batches; it takes 2")
    limits = {"limit": limit, "max_steps": stretch.steps - count if stretch.end != "end" or cut else None}
    ranks = partial(RanksAtOnce, factory, reader, hooks, world_size)
    with ranks() as first, ranks() as second:
        head = first.read(max_steps=count)
        if head.end == "error":
            return _raised(name, head.error)
        try:
            states = first.save(count, len(head.numbers))
        except NoHooks as error:
            return LoaderCheck(name, "not checked", str(error))
        except Exception as error:  # of foreign code
            return _raised(name, f"{type(error).__name__} in save_state: {str(error)[:300]}")
        rest, again = first.go_on(**limits), second.read(states, **limits)
    words = f"{world_size} ranks resumed after {count} batches"
    check = check_equal(name, rest, again, words)
    return replace(check, detail=f"{words}: {check.detail}") if check.status == "passed" else check


def check_resume_world(
    factory: Factory, reader: Reader, hooks: Hooks | None, stretch: Stretch, world_size: int, limit: int
) -> LoaderCheck:
    """Read a third of epoch 0 on several ranks, a third on one rank, and the rest on one that is resumed again.

    Args:
        factory: makes the loaders.
        reader: reads their batches.
        hooks: see `RanksAtOnce`.
        stretch: the epoch, as `world_size` ranks read it.
        world_size: number of ranks at first.
        limit: samples of an epoch.
    """
    name, count = "resume.world", stretch.steps // 3
    if not count:
        return LoaderCheck(name, "not checked", f"a rank has {stretch.steps} batches; it takes 3")
    states: list[Any] | None = None
    parts: list[np.ndarray] = []
    batches = 0
    for stage, world in enumerate((world_size, 1, 1)):
        with RanksAtOnce(factory, reader, hooks, world) as ranks:
            rank_states = None if states is None else states[:1] * world
            part = ranks.read(rank_states, limit=limit, max_steps=count if stage < 2 else None)
            if ranks.refused and stage == 1:
                return LoaderCheck(name, "not applicable", f"the loader refuses states of other ranks: {ranks.refused}")
            if part.end == "error":
                return _raised(name, part.error)
            parts.append(part.numbers)
            batches += part.steps
            try:
                states = ranks.save(batches, sum(map(len, parts))) if stage < 2 else None
            except NoHooks as error:
                return LoaderCheck(name, "not checked", str(error))
            except Exception as error:  # of foreign code
                return _raised(name, f"{type(error).__name__} in save_state: {str(error)[:300]}")
    seen, counts = np.concatenate(parts), [len(part) for part in parts]
    if is_epoch(seen[:limit], reader.numbers.counts):  # later ones may be of the next epoch
        detail = f"{counts[0]:,} samples of {world_size} ranks, then {counts[1]:,} and {counts[2]:,} of one, each once"
        return LoaderCheck(name, "passed", detail, {"samples": counts})
    return describe_samples(name, reader.numbers, seen if part.end == "end" else seen[:limit])


def _raised(name: str, error: str) -> LoaderCheck:
    return LoaderCheck(name, "failed", f"the loader failed: {error}", {"error": error})
