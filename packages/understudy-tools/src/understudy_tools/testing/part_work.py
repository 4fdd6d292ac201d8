"""Work of tests: functions of parts that count their calls, end their process, or wait."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy_data import Part
from understudy_tools.check.image_facts import ReadImages, ReadVideos
from understudy_tools.check.row_facts import ReadRows
from understudy_tools.edit.videos import EncodePieces, JoinPieces
from understudy_tools.edit.write_set import WriteRows


@dataclass(frozen=True)
class Squares:
    """Squares of numbers. Each call leaves a file in `folder`.

    Attributes:
        deadly: numbers that end their process.
        once: numbers that end it the first time.
        wrong: numbers that are an error.
        slow: seconds for each part.
        held: numbers that wait as long as there is a file `hold` beside the folder.
        setting: a value that results depend on.
    """

    folder: Path
    deadly: tuple[int, ...] = ()
    once: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()
    slow: float = 0.0
    held: tuple[int, ...] = ()
    setting: int = 0

    def __call__(self, part: Part) -> list[int]:
        name = "-".join(map(str, part))
        first = not list(self.folder.glob(f"{name}.*"))
        (self.folder / f"{name}.{os.getpid()}.{time.monotonic_ns()}").touch()
        if set(part) & set(self.deadly) or (first and set(part) & set(self.once)):
            os.kill(os.getpid(), signal.SIGKILL)
        if set(part) & set(self.wrong):
            raise ValueError(name)
        time.sleep(self.slow)
        while set(part) & set(self.held) and self.folder.with_name("hold").exists():
            time.sleep(0.01)
        return [number**2 for number in part]

    def depends_on(self, part: Part) -> Any:
        return self.setting

    def calls(self) -> int:
        return len(list(self.folder.iterdir()))


@dataclass(frozen=True)
class SlowNode(Squares):
    """Ten times slower on one node of a Ray cluster."""

    node: str = ""

    def __call__(self, part: Part) -> list[int]:
        import ray

        if ray.is_initialized() and ray.get_runtime_context().get_node_id() == self.node:
            time.sleep(9 * self.slow)
        return super().__call__(part)


class DeadlyRows(ReadRows):
    """End the process that reads file 2."""

    def __call__(self, part: Part) -> Any:
        return _end(2 in part) or super().__call__(part)


class DeadlyVideos(ReadVideos):
    """End the process that opens file 5."""

    def __call__(self, part: Part) -> Any:
        return _end(5 in [file for _, _, file in part]) or super().__call__(part)


class DeadlyImages(ReadImages):
    """End the process that decodes row 0."""

    def __call__(self, part: Part) -> Any:
        return _end(0 in [row for _, row in part]) or super().__call__(part)


class DeadlyEncoding(EncodePieces):
    """End the process that encodes row 3."""

    def compute(self, item: Any) -> Any:
        return _end(self.plan.pieces[item].row == 3) or super().compute(item)


class DeadlyJoin(JoinPieces):
    """End the process that copies the packets of row 3."""

    def compute(self, item: Any) -> Any:
        return _end(3 in [self.plan.pieces[number].row for number in item[1]]) or super().compute(
            item
        )


class DeadlyRowFiles(WriteRows):
    """End the process that writes row 3."""

    def compute(self, item: Any) -> Any:
        return _end(3 in [self.plan.pieces[number].row for number in item[1]]) or super().compute(
            item
        )


def _end(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)
