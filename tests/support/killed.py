"""A process that trains in forked children which kill themselves, with SIGKILL, before a chosen change of the disk.

Run as a program: `python killed.py DATA OUT SEED COUNT`. It imports torch once and forks for every attempt. Prints
JSON: the number of disk changes of a run that is left alone, and where each of the others was killed.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch._dynamo
import torch.distributed.checkpoint  # noqa: F401 (imported before the forks, not in each of them)

from support.runs import tiny_config
from understudy.train import run
from understudy.train.rundir import RunDir

CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


class Changes:
    """Counts changes of files below `root` and, before the one numbered `at`, ends the process without a word."""

    def __init__(self, root: Path, at: int | None) -> None:
        self.root, self.at, self.count = str(root), at, 0
        sys.addaudithook(self.audit)
        plain = os.fsync

        def fsync(handle: int) -> None:
            self.happens()
            plain(handle)

        os.fsync = fsync

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in CHANGES or not str(arguments[0]).startswith(self.root):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        self.happens()

    def happens(self) -> None:
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


def attempt(data: Path, out: Path, at: int | None) -> tuple[bool, int]:
    """Start or resume the run in a child; (whether it was killed, how many changes it made)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            changes = Changes(out, at)
            begun = RunDir(out).config.exists()
            code = run.resume(RunDir(out).settings()) if begun else run.train(tiny_config(data, out))
            os.write(writing, str(changes.count).encode())
            os._exit(code)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(99)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        count = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True, 0
    assert os.WEXITSTATUS(status) == 0, f"{out} killed before change {at}: exit {os.WEXITSTATUS(status)}"
    return False, int(count)


def main(data: Path, out: Path, seed: int, count: int) -> None:
    draw = random.Random(seed)
    killed, changes = attempt(data, out / "whole", None)
    assert not killed
    # Evenly over the run, so that beginning, saving, pruning and ending are all met.
    points = [draw.randrange(k * changes // count, (k + 1) * changes // count) for k in range(count)]
    for number, point in enumerate(points):
        folder = out / f"killed-{number}"
        again = draw.randrange(changes // 2)  # some resumes are killed too
        assert attempt(data, folder, point)[0]
        attempt(data, folder, again)
        assert not attempt(data, folder, None)[0]
    print(json.dumps({"changes": changes, "points": points}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
