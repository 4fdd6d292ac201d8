"""Encoding does not change the scheduling of this process, even as root, where SVT-AV1 makes its
threads real-time.

Each case runs in a process of its own, so that a failure does not slow the other tests down.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import pytest

MAY_RAISE = """
import os
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except (OSError, AttributeError):
    raise SystemExit(1)
"""

# Prints the scheduling of all threads after each step. The first argument sets how this process
# itself is scheduled.
CHILD = """
import json, os, subprocess, sys, threading
from pathlib import Path
import numpy as np
from understudy_data.video.encode import VideoEncoder

mode, codec, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
if mode == "nice":
    os.nice(5)
elif mode == "real-time":
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(7))

def seen(thread):
    kind = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
    return [*kind, os.getpriority(os.PRIO_PROCESS, thread), sorted(os.sched_getaffinity(thread))]

def threads():
    return {name: seen(int(name)) for name in os.listdir("/proc/self/task")}

done = threading.Event()
ready = threading.Event()
def wait():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(3))
    ready.set()
    done.wait()
deliberate = threading.Thread(target=wait)
deliberate.start()
ready.wait()

steps = [("start", threads())]
images = np.random.default_rng(0).integers(0, 255, (6, 64, 64, 3), np.uint8)
for turn in range(2):
    encoder = VideoEncoder(folder / f"{turn}.mp4", 10, 64, 64, codec)
    steps.append(("open", threads()))
    for image in images:
        encoder.add(image)
        steps.append(("add", threads()))
    encoder.close() if turn == 0 else encoder.abandon()
    steps.append(("close", threads()))
later = []
thread = threading.Thread(target=lambda: later.append(seen(0)))
thread.start()
thread.join()
script = "import os; print(os.sched_getscheduler(0))"
child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
done.set()
print(json.dumps({
    "steps": steps, "main": os.getpid(), "deliberate": deliberate.native_id, "thread": later[0],
    "child": int(child.stdout),
}))
"""


def _can_be_real_time() -> bool:
    return (
        os.path.isdir("/proc/self/task")
        and subprocess.run([sys.executable, "-c", MAY_RAISE]).returncode == 0
    )


def observe(mode: str, codec: str, folder: Path) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-c", CHILD, mode, codec, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.long
@pytest.mark.skipif(not _can_be_real_time(), reason="this user may not make threads real-time")
@pytest.mark.parametrize("mode", ["as started", "nice", "real-time"])
@pytest.mark.parametrize("codec", ["libsvtav1", "libx264", "libx265"])
def test_encoder_does_not_change_scheduling(mode: str, codec: str, tmp_path: Path) -> None:
    seen = observe(mode, codec, tmp_path)
    main = str(seen["main"])
    deliberate = str(seen["deliberate"])
    start = seen["steps"][0][1]
    for step, threads in seen["steps"]:
        for thread, now in threads.items():
            if thread in start:
                assert now == start[thread], (step, thread)  # policy, priority, niceness, cores
            else:
                assert now[:2] == start[main][:2], (step, thread)
    assert start[deliberate][:2] == [os.SCHED_FIFO, 3]
    assert seen["thread"] == start[main]
    assert seen["child"] == start[main][0]
    # a newer SVT-AV1 works in the caller's thread
    if codec == "libsvtav1" and int(av.__version__.split(".")[0]) < 19:
        assert max(len(threads) for _, threads in seen["steps"]) > len(start), (
            "the encoder has no threads of its own"
        )


@pytest.mark.skipif(not _can_be_real_time(), reason="this user may not make threads real-time")
def test_preserve_scheduling_restores_after_an_error(tmp_path: Path) -> None:
    """The caller gets its scheduling back after an error inside the block."""
    script = """
import os
from understudy_data.video.encode import preserve_scheduling
try:
    with preserve_scheduling():
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
        raise KeyError
except KeyError:
    print(os.sched_getscheduler(0))
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert result.stdout.strip() == str(os.SCHED_OTHER), result.stderr
