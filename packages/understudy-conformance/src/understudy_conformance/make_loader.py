"""The caller's factory and state hooks, and loaders of several epochs made with them."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from understudy_conformance.foreign_calls import ForeignCalls, LoaderStalled

SaveState = Callable[[Any, "Consumed"], Any]
LoadState = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Consumed:
    """Position of a reader, for `save_state`.

    Attributes:
        epoch: number of the epoch.
        batches: batches that each rank took in this epoch, also before earlier resumes.
        samples: samples taken by all ranks since the beginning of epoch 0.
        batch: the batch taken last, as the loader gave it.
        world_size: number of ranks that read now.
    """

    epoch: int
    batches: int
    samples: int
    batch: Any
    world_size: int = 1


class Factory:
    """`make_loader`, called with those of rank, world_size, num_workers, epoch and seed that it takes.

    Args:
        make_loader: the caller's function.
    """

    def __init__(self, make_loader: Callable[..., Any]) -> None:
        parameters = inspect.signature(make_loader).parameters.values()
        self._make = make_loader
        self._any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._names = {
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }

    def takes(self, *names: str) -> bool:
        """Whether `make_loader` takes all of these arguments."""
        return self._any or self._names.issuperset(names)

    def make(self, *, rank: int = 0, world_size: int = 1, num_workers: int = 0, epoch: int = 0) -> Any:
        """Make a loader."""
        arguments = {"rank": rank, "world_size": world_size, "num_workers": num_workers, "epoch": epoch, "seed": 0}
        return self._make(**{name: value for name, value in arguments.items() if self.takes(name)})


class Epochs:
    """Loaders of all ranks, and their iterators over one epoch after the other.

    With `epoch` among the arguments of `make_loader` each epoch has loaders of its own. Otherwise the same loaders are
    iterated again, and endless ones continue.

    Args:
        factory: makes the loaders.
        calls: runs the loaders' code.
        world_size: number of ranks.
        num_workers: worker processes of each.
        prepare: called with each loader.
        finish: called with each loader at the end.
    """

    def __init__(
        self,
        factory: Factory,
        calls: ForeignCalls,
        world_size: int = 1,
        num_workers: int = 0,
        prepare: Callable[[Any], None] | None = None,
        finish: Callable[[Any], None] | None = None,
    ) -> None:
        self._factory, self._world_size, self._num_workers = factory, world_size, num_workers
        self._prepare, self._finish, self._calls = prepare, finish, calls
        self.loaders: list[Any] = []
        self._iterators: list[Iterator[Any]] = []

    def begin(self, epoch: int, endless: bool = False) -> list[Iterator[Any]]:
        """Return the iterators of an epoch, one per rank; `endless` continues those of the epoch before."""
        if not self.loaders or self._factory.takes("epoch"):
            self.close()
            for rank in range(self._world_size):
                options = {"world_size": self._world_size, "num_workers": self._num_workers, "epoch": epoch}
                self.loaders.append(self._factory.make(rank=rank, **options))
                if self._prepare is not None:
                    self._prepare(self.loaders[-1])
        elif endless and self._iterators:
            return self._iterators
        self._iterators = [iter(loader) for loader in self.loaders]
        return self._iterators

    def current(self) -> list[Iterator[Any]]:
        """Return the iterators of the current epoch."""
        return self._iterators

    def close(self) -> None:
        """End the loaders."""
        for loader in self.loaders:
            if self._finish is not None:
                self._finish(loader)
            close_loader(loader, self._calls)
        self.loaders, self._iterators = [], []


def close_loader(loader: Any, calls: ForeignCalls) -> None:
    """End a loader that can be ended; one that is stuck stays."""
    if callable(close := getattr(loader, "close", None)):
        with suppress(LoaderStalled):
            calls.call(close)


def default_hooks(loader: Any) -> tuple[SaveState, LoadState] | None:
    """Return the hooks of a loader with `state_dict` and `load_state_dict`; None without them."""
    if not (callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))):
        return None

    def save(loader: Any, consumed: Consumed) -> Any:
        return loader.state_dict()

    def load(loader: Any, state: Any) -> None:
        loader.load_state_dict(state)

    return save, load
