"""The caller's factory and state hooks, and loaders of several epochs made with them."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

SaveState = Callable[[Any, "Consumed"], Any]
LoadState = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Consumed:
    """Position of a reader, for `save_state`.

    Attributes:
        epoch: number of the epoch.
        batches: batches taken in this epoch.
        samples: samples taken since the beginning of epoch 0.
        batch: the batch taken last, as the loader gave it.
    """

    epoch: int
    batches: int
    samples: int
    batch: Any


class Factory:
    """`make_loader`, called with those of rank, world_size, num_workers, epoch and seed that it takes.

    Args:
        make_loader: the caller's function.
    """

    def __init__(self, make_loader: Callable[..., Any]) -> None:
        parameters = inspect.signature(make_loader).parameters.values()
        self._make = make_loader
        self._any = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._names = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

    def takes(self, *names: str) -> bool:
        """Whether `make_loader` takes all of these arguments."""
        return self._any or self._names.issuperset(names)

    def make(self, *, rank: int = 0, world_size: int = 1, num_workers: int = 0, epoch: int = 0) -> Any:
        """Make a loader."""
        given = {"rank": rank, "world_size": world_size, "num_workers": num_workers, "epoch": epoch, "seed": 0}
        return self._make(**{name: value for name, value in given.items() if self.takes(name)})


class Epochs:
    """Loaders of all ranks, and their iterators over one epoch after the other.

    With `epoch` among the arguments of `make_loader` each epoch has loaders of its own. Otherwise the same loaders are
    iterated again, and endless ones continue.

    Args:
        factory: makes the loaders.
        world_size: number of ranks.
        num_workers: worker processes of each.
    """

    def __init__(self, factory: Factory, world_size: int = 1, num_workers: int = 0) -> None:
        self._factory, self._world_size, self._num_workers = factory, world_size, num_workers
        self.loaders: list[Any] = []
        self._iterators: list[Iterator[Any]] = []

    def begin(self, epoch: int, endless: bool = False) -> list[Iterator[Any]]:
        """Return the iterators of an epoch, one per rank; `endless` continues those of the epoch before."""
        if not self.loaders or self._factory.takes("epoch"):
            self.close()
            for rank in range(self._world_size):
                options = {"world_size": self._world_size, "num_workers": self._num_workers, "epoch": epoch}
                self.loaders.append(self._factory.make(rank=rank, **options))
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
            if callable(close := getattr(loader, "close", None)):
                close()
        self.loaders, self._iterators = [], []


def default_hooks(loader: Any) -> tuple[SaveState, LoadState] | None:
    """Return the hooks of a loader with `state_dict` and `load_state_dict`; None without them."""
    if not (callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))):
        return None

    def save(loader: Any, consumed: Consumed) -> Any:
        return loader.state_dict()

    def load(loader: Any, state: Any) -> None:
        loader.load_state_dict(state)

    return save, load
