"""A process that logs figures like a run, then is killed or ends:
`python tracked.py RUN TRACKERS FROM TO kill|end`.

Also reads each tracker as {step: {name: value}}; a repeated step is an error.
"""

import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from understudy.train.track.trackers import MetricsLog

Rows = dict[int, dict[str, float]]


def records(step: int) -> list[dict[str, Any]]:
    """Figures of `step`: a loss each step, a validation each fifth."""
    loss: dict[str, Any] = {
        "kind": "train",
        "step": step,
        "loss": 1 / step,
        "grad_norm": float("nan"),
    }
    judged = {
        "kind": "val",
        "step": step,
        "loss": 2 / step,
        "tasks": {"pick up": {"loss": 3 / step, "samples": 7}},
    }
    return [loss, judged] if step % 5 == 0 else [loss]


def expected(last: int) -> Rows:
    """Expected content of a tracker after step `last`."""
    rows: Rows = {}
    for step in range(1, last + 1):
        rows[step] = {"train/loss": 1 / step}
        if step % 5 == 0:
            rows[step] |= {
                "val/loss": 2 / step,
                "val/tasks/pick up/loss": 3 / step,
                "val/tasks/pick up/samples": 7.0,
            }
    return rows


def in_tensorboard(root: Path) -> Rows:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    rows: Rows = {}
    for file in sorted((root / "tensorboard").iterdir()):
        for event in EventFileLoader(str(file)).Load():
            # Reading moves a plain number into a tensor.
            values = {v.tag: v.tensor.float_val[0] for v in event.summary.value}
            if values:
                assert event.step not in rows, f"step {event.step} twice"
                rows[event.step] = values
    return rows


def in_wandb(root: Path) -> Rows:
    """The history of the one offline folder; a .wandb file is a LevelDB log of protocol buffers
    behind 7 bytes.
    """
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (root / "wandb").glob("offline-run-*/run-*.wandb")
    data = file.read_bytes()
    at = 7
    part = b""
    rows = {}
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            record = Record.FromString(part)
            part = b""
            if record.HasField("history"):
                step = record.history.step.num
                assert step not in rows, f"step {step} twice"
                items = {
                    "/".join(i.nested_key) or i.key: json.loads(i.value_json)
                    for i in record.history.item
                }
                rows[step] = {key: value for key, value in items.items() if not key.startswith("_")}
    return rows


def in_trackio(root: Path) -> Rows:
    import json

    (file,) = (root / "trackio").glob("*.db")
    rows: Rows = {}
    for step, values in sqlite3.connect(file).execute("SELECT step, metrics FROM metrics"):
        assert step not in rows, f"step {step} twice"
        rows[step] = json.loads(values)
    return rows


def main(root: Path, trackers: tuple[Any, ...], begin: int, end: int, how: str) -> None:
    os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": str(root / "trackio")}
    log = MetricsLog(root, trackers, {"data": {"root": "d"}}, begin)
    for step in range(begin + 1, end + 1):
        for record in records(step):
            log.log(step, record)
    log.sync()
    if how == "kill":
        time.sleep(0.7)  # some trackers have sent a part
        os.kill(os.getpid(), signal.SIGKILL)
    log.close()


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        tuple(sys.argv[2].split(",")),
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
