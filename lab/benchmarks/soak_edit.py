"""Kills of `understudy edit` with SIGKILL: each leaves either no output or the whole one.

    python lab/benchmarks/soak_edit.py --kills 100 --json

One edit merges two small sets, cuts them off key frames and transcodes them. A run without a kill
gives the reference. Every second kill comes at a random instant of its duration, every other one
just before a random rename, replacement or flush of a file. All runs write to the same place, so
each meets the remains of the killed one before it. An output that is there must equal the
reference, file by file.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parsers import make_parser
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.clips import Encoding
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_tools.edit.features import common_features, edit_features, resized_feature
from understudy_tools.edit.plan import Piece, Plan
from understudy_tools.edit.write_set import write_outputs

CAMERA = "observation.images.top"
FILE_STEPS = ("rename", "replace", "fsync")


def record(root: Path, episodes: int, seed: int) -> None:
    """Record a small set."""
    rng = np.random.default_rng(seed)
    features: dict[str, dict[str, Any]] = {
        CAMERA: {"dtype": "video", "shape": (64, 64, 3)},
        "action": {"dtype": "float32", "shape": (2,)},
    }
    with EpisodeWriter(root, fps=10, features=features, codec="libx264") as writer:
        for episode in range(episodes):
            for _ in range(8 + episode):
                image = rng.integers(0, 255, (64, 64, 3), np.uint8)
                writer.add_frame(
                    {CAMERA: image, "action": rng.normal(size=2)}, task=f"task {episode % 2}"
                )
            writer.save_episode()


def edit(sources: list[Path], out: Path) -> None:
    """Merge the sources: some episodes copied, some cut off a key frame; half the size."""
    catalogs = edit_features([Catalog.open(source) for source in sources], {}, (), {})
    features = common_features(catalogs)
    features[CAMERA] = resized_feature(features[CAMERA], (32, 32))
    pieces = [
        Piece(number, row, row % 2, int(length))
        for number, catalog in enumerate(catalogs)
        for row, length in enumerate(catalog.episodes.lengths)
    ]
    plan = Plan(
        catalogs,
        tuple(pieces),
        features,
        catalogs[0].fps,
        None,
        encode={CAMERA: Encoding((32, 32), gop=2)},
    )
    write_outputs({"": plan}, out, ["soak"])


def digest(root: Path) -> str:
    """Digest of all files below a folder."""
    found = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def count_calls(before: Callable[[int], None]) -> None:
    """Call `before` with the number of each rename, replacement and flush that follows."""
    count = 0

    def patch(real: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            before(count)
            return real(*arguments, **options)

        return patched

    for name in FILE_STEPS:
        setattr(os, name, patch(getattr(os, name)))


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child; return its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def main() -> int:
    """Run the kills and print the counts."""
    parser = make_parser(__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="understudy-soak-"))
    rng = random.Random(options.seed)
    counts = {"kills": 0, "nothing": 0, "whole": 0, "wrong": 0, "finished_before": 0}
    try:
        sources = [folder / "a", folder / "b"]
        for number, source in enumerate(sources):
            record(source, 3, number)

        def reference() -> None:
            calls: list[int] = []
            count_calls(calls.append)
            begin = time.monotonic()
            edit(sources, folder / "reference")
            (folder / "figures.json").write_text(json.dumps([len(calls), time.monotonic() - begin]))

        if os.waitpid(fork(reference), 0)[1]:
            raise SystemExit("the run without a kill failed")
        calls, seconds = json.loads((folder / "figures.json").read_text())
        wanted = digest(folder / "reference")
        out = folder / "out"
        while counts["kills"] < options.kills:
            # the last ones show the output
            step = rng.choice([rng.randint(1, calls), rng.randint(calls - 2, calls)])
            at_call = step if counts["kills"] % 2 else 0

            def work(at: int = at_call) -> None:
                if at:
                    count_calls(
                        lambda number: (
                            os.kill(os.getpid(), signal.SIGKILL) if number == at else None
                        )
                    )
                edit(sources, out)

            child = fork(work)
            if not at_call:
                time.sleep(rng.uniform(0, seconds))
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            killed = os.WIFSIGNALED(status)
            counts["kills" if killed else "finished_before"] += 1
            if not out.exists():
                counts["nothing"] += killed
                counts["wrong"] += not killed
                continue
            whole = digest(out) == wanted and Catalog.open(out).report() == []
            counts["whole" if whole else "wrong"] += killed or not whole
            shutil.rmtree(out)
        left = [path.name for path in folder.iterdir() if path.name.startswith(".out-")]
        edit(sources, out)
        counts["wrong"] += digest(out) != wanted
        remains = [path.name for path in folder.iterdir() if path.name.startswith(".")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = {**counts, "folders_left_by_kills": len(left), "folders_left_at_the_end": len(remains)}
    facts |= {"file_steps": calls, "seconds_per_edit": round(seconds, 3)}
    print(
        json.dumps(facts)
        if options.json
        else "\n".join(f"{name}: {value}" for name, value in facts.items())
    )
    return 1 if counts["wrong"] or remains else 0


if __name__ == "__main__":
    sys.exit(main())
