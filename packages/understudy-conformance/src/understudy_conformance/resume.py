"""Resume of a loader from a state, in the middle of an epoch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from understudy_conformance.make_loader import (
    Consumed,
    Epochs,
    Factory,
    LoadState,
    SaveState,
    close_loader,
    default_hooks,
)
from understudy_conformance.reading import Reader, Stretch
from understudy_conformance.results import LoaderCheck
from understudy_conformance.sample_order import check_equal


def check_resume(
    factory: Factory,
    reader: Reader,
    stretches: list[Stretch],
    *,
    num_workers: int,
    limit: int,
    max_steps: int | None,
    hooks: tuple[SaveState, LoadState] | None,
) -> LoaderCheck:
    """Interrupt a loader in each epoch, and compare a resumed one with the rest of the first.

    Args:
        factory: makes the loaders.
        reader: reads their batches.
        stretches: the epochs 0, 1, ... as one process reads them.
        num_workers: worker processes of the loaders.
        limit: samples of an epoch.
        max_steps: batches to read in each epoch.
        hooks: functions that save and load a state; None for those of the loader.
    """
    results = []
    for epoch, whole in enumerate(stretches):
        if whole.steps < 2:
            return LoaderCheck("resume", "not checked", f"epoch {epoch} has {whole.steps} batches; it takes 2")
        before = sum(len(stretch.numbers) for stretch in stretches[:epoch])
        interrupted = _Interrupted(factory, reader, num_workers, limit, max_steps, hooks)
        try:
            result = interrupted.check(epoch, before, whole.steps // 2, stretches)
        finally:
            interrupted.close()
        if result.status != "passed":
            return result
        results.append(result)
    detail = "; ".join(result.detail for result in results)
    return LoaderCheck("resume", "passed", detail, {"epochs": [dict(result.measured) for result in results]})


class _Interrupted:
    """A loader that is interrupted, and one that is resumed from its state."""

    def __init__(
        self,
        factory: Factory,
        reader: Reader,
        num_workers: int,
        limit: int,
        max_steps: int | None,
        hooks: tuple[SaveState, LoadState] | None,
    ) -> None:
        self._factory, self._reader, self._hooks = factory, reader, hooks
        self._workers, self._limit, self._max_steps = num_workers, limit, max_steps
        self._epochs = Epochs(factory, reader.calls, num_workers=num_workers)
        self._resumed: Any = None

    def check(self, epoch: int, before: int, count: int, stretches: list[Stretch]) -> LoaderCheck:
        """Take `count` batches of an epoch, save, resume, and compare the batches that follow."""
        begun = self._begin(epoch, stretches)
        head = self._reader.read(lambda: begun.begin(epoch, stretches[0].end == "limit"), max_steps=count)
        if head.end == "error":
            return _raised(head.error)
        loader = begun.loaders[0]
        hooks = self._hooks or default_hooks(loader)
        if hooks is None:
            reason = f"{type(loader).__name__} has no state_dict and load_state_dict: give save_state and load_state"
            return LoaderCheck("resume", "not checked", reason)
        save, load = hooks
        consumed = Consumed(epoch, count, before + len(head.numbers), head.last)
        try:
            state = self._reader.calls.call(partial(save, loader, consumed))
        except Exception as error:  # any error of foreign code is a result
            return _raised(f"{type(error).__name__} in save_state: {str(error)[:300]}")
        left = stretches[epoch].steps - count if stretches[epoch].end != "end" or self._max_steps is not None else None
        rest = self._reader.read(begun.current, limit=self._limit, max_steps=left)

        def resume() -> list[Iterator[Any]]:
            loader = self._factory.make(num_workers=self._workers, epoch=epoch)
            changed = load(loader, state)
            self._resumed = loader if changed is None else changed
            return [iter(self._resumed)]

        again = self._reader.read(resume, limit=self._limit, max_steps=left)
        words = f"resumed after {count} batches of epoch {epoch}"
        result = check_equal("resume", rest, again, words)
        return replace(result, detail=f"{words}: {result.detail}") if result.status == "passed" else result

    def _begin(self, epoch: int, stretches: list[Stretch]) -> Epochs:
        """Loaders whose next epoch is `epoch`."""
        if not self._factory.takes("epoch"):
            for earlier in range(epoch):
                self._read_again(earlier, stretches)
        return self._epochs

    def _read_again(self, epoch: int, stretches: list[Stretch]) -> None:
        endless = stretches[0].end == "limit"
        steps = stretches[epoch].steps if endless or self._max_steps is not None else None
        self._reader.read(lambda: self._epochs.begin(epoch, endless and epoch > 0), max_steps=steps)

    def close(self) -> None:
        """End both loaders."""
        self._epochs.close()
        close_loader(self._resumed, self._reader.calls)


def _raised(error: str) -> LoaderCheck:
    return LoaderCheck("resume", "failed", f"the loader failed: {error}", {"error": error})
