"""Plant bugs in the source, one in each room, and see whether the tests of `make test` find them.

    python lab/benchmarks/planted_bugs.py              all
    python lab/benchmarks/planted_bugs.py --only order --long

Works in a copy of the checkout. A bug is found if a test of its folders fails; the tests run until
the first failure. A bug that nothing finds ends the program with 1.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    """One line of the source, written wrongly."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    """Folders or files of tests that may find it."""


DATA = "packages/understudy-data"
TRAIN = "packages/understudy"
TOOLS = "packages/understudy-tools"
SOURCE = f"{DATA}/src/understudy_data"
BUGS = (
    Bug(
        "order: positions of a rank",
        f"{SOURCE}/order/rank_positions.py",
        "return rank * batch_size // world_size, (rank + 1) * batch_size // world_size",
        "return rank * batch_size // world_size, ((rank + 1) * batch_size - 1) // world_size",
        (f"{DATA}/tests/order",),
    ),
    Bug(
        "windows: padding at the end of an episode",
        f"{SOURCE}/datasets/time_windows.py",
        "(numbers < low) | (numbers > high)",
        "(numbers < low) | (numbers >= high)",
        (f"{DATA}/tests/datasets",),
    ),
    Bug(
        "selection: frames dropped at the end",
        f"{SOURCE}/datasets/selection/select.py",
        "stop = np.minimum(stop, lengths[row] - self.drop_n_last_frames)",
        "stop = np.minimum(stop, lengths[row] - self.drop_n_last_frames + 1)",
        (f"{DATA}/tests/datasets",),
    ),
    Bug(
        "video: height and width exchanged",
        f"{SOURCE}/video/color.py",
        "out[...] = np.rint(mean, out=mean).transpose(0, 2, 1)",
        "out[...] = np.rint(mean, out=mean).transpose(0, 2, 1)[:, ::-1]",
        (f"{DATA}/tests/video",),
    ),
    Bug(
        "mixture: the mask of padded dimensions",
        f"{SOURCE}/load/mixed_batches.py",
        "torch.arange(width) >= real[:, None]",
        "torch.arange(width) > real[:, None]",
        (f"{DATA}/tests/load",),
    ),
    Bug(
        "cache: the key of a group",
        f"{SOURCE}/storage/mapped_tables.py",
        "json.dumps([code_version(), keys])",
        "json.dumps([code_version(), keys[:1]])",
        (f"{DATA}/tests/storage", f"{DATA}/tests/datasets/format"),
    ),
    Bug(
        "validation: chunks of a rank",
        f"{SOURCE}/load/validation_data.py",
        "high = (rank + 1) * chunks // world_size",
        "high = ((rank + 1) * chunks - rank) // world_size",
        (f"{DATA}/tests/load", f"{TRAIN}/tests/train/validation"),
    ),
    Bug(
        "statistics: moments of two parts",
        f"{SOURCE}/datasets/stats/running.py",
        "m2 = a.m2 + b.m2 + delta**2 * a.count * share",
        "m2 = a.m2 + b.m2 + delta**2 * a.count",
        (f"{DATA}/tests/datasets/stats",),
    ),
    Bug(
        "settings: a bound",
        "packages/understudy-kit/src/understudy_kit/config/declare.py",
        "Fraction = Annotated[float, Interval(ge=0, lt=1)]",
        "Fraction = Annotated[float, Interval(ge=0, le=1)]",
        ("packages/understudy-kit/tests", f"{TRAIN}/tests/config"),
    ),
    Bug(
        "client: weights of overlapping chunks",
        "packages/understudy-client/src/understudy_client/async_chunks.py",
        "np.exp(-self._decay * np.arange(len(actions)))",
        "np.exp(self._decay * np.arange(len(actions)))",
        ("packages/understudy-client/tests", "packages/understudy-robot/tests/serve"),
    ),
    Bug(
        "flow matching: the sign of the velocity",
        f"{TRAIN}/src/understudy/policies/common/flow_matching.py",
        "return noise - actions",
        "return actions - noise",
        (f"{TRAIN}/tests/policies",),
    ),
    Bug(
        "optimizer: the step of the bias correction",
        f"{TRAIN}/src/understudy/optim/adamw.py",
        'torch._foreach_add_([self.state[p]["step"] for p in stepped], [1 - no] * len(stepped))',
        'torch._foreach_add_([self.state[p]["step"] for p in stepped], [1.0] * len(stepped))',
        (f"{TRAIN}/tests/optim",),
    ),
    Bug(
        "step: elements without a mask",
        f"{TRAIN}/src/understudy/train/optimizer_step.py",
        "counts = elements.masked_fill(elements == 0, 1)",
        "counts = elements + 1",
        (f"{TRAIN}/tests/train/test_optimizer_step.py",),
    ),
    Bug(
        "schedule: the first step of the warm-up",
        f"{TRAIN}/src/understudy/optim/lr_schedule.py",
        "return (step + 1) / warmup",
        "return step / warmup",
        (f"{TRAIN}/tests/optim",),
    ),
    Bug(
        "average: the factor of the weights",
        f"{TRAIN}/src/understudy/optim/moving_average.py",
        "torch._foreach_lerp_(averages, masters, 1 - decay)",
        "torch._foreach_lerp_(averages, masters, decay)",
        (f"{TRAIN}/tests/optim", f"{TRAIN}/tests/train"),
    ),
    Bug(
        "validation: the mean of a loss",
        f"{TRAIN}/src/understudy/train/validation/metrics.py",
        "parts.append(weight * total / count)",
        "parts.append(total / count)",
        (f"{TRAIN}/tests/train/validation",),
    ),
    Bug(
        "contract: units of another dataset",
        "packages/understudy-client/src/understudy_client/contract/compare.py",
        '"units": (trained_units, other_units),',
        '"units": (trained_units, trained_units),',
        ("packages/understudy-client/tests", "packages/understudy-robot/tests/contract"),
    ),
    Bug(
        "check: unusual episodes on one side",
        f"{TOOLS}/src/understudy_tools/check/rules/episodes.py",
        "if abs(z) >= WARN:",
        "if z >= WARN:",
        (f"{TOOLS}/tests/check",),
    ),
    Bug(
        "edit: the first image of a cut episode",
        "packages/understudy-data/src/understudy_data/datasets/read/clips.py",
        "first + np.arange(start, stop), name)",
        "first + 1 + np.arange(start, stop), name)",
        (f"{TOOLS}/tests/edit",),
    ),
    Bug(
        "policy: actions in units of the robot",
        f"{TRAIN}/src/understudy/policies/common/normalizer.py",
        "return x.float() * spread + offset",
        "return x.float() * spread - offset",
        (f"{TRAIN}/tests/policies",),
    ),
    Bug(
        "rollout: the state in a wider policy",
        "packages/understudy-robot/src/understudy_robot/rollout/adapter.py",
        "torch.nn.functional.pad(batch[STATE], (0, lacks))",
        "torch.nn.functional.pad(batch[STATE], (lacks, 0))",
        ("packages/understudy-robot/tests/rollout",),
    ),
    Bug(
        "export: the quantiles of another format",
        "packages/understudy-zoo/src/understudy_zoo/pi05/export.py",
        "np.maximum(2 * spread - StoredNormalization.OPENPI_EPS, 0)",
        "np.maximum(spread - StoredNormalization.OPENPI_EPS, 0)",
        ("packages/understudy-zoo/tests/policies",),
    ),
    Bug(
        "checkpoint: the draft is the checkpoint",
        f"{TRAIN}/src/understudy/train/checkpoint/checkpoint.py",
        "unfinished.rename(final)",
        "shutil.copytree(unfinished, final)",
        (f"{TRAIN}/tests/train/checkpoint",),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="bugs whose name has this text")
    parser.add_argument("--long", action="store_true", help="with the long tests")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        left_out = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "runs", "site", "dist")
        shutil.copytree(ROOT, copy, ignore=left_out)
        for bug in BUGS:
            if options.only in bug.name:
                row = plant(bug, copy, options.long)
                rows.append(row)
                print(f"{row['bug']}: {row['found_by'] or 'NOT FOUND'}", file=sys.stderr)
    missed = [row["bug"] for row in rows if not row["found_by"]]
    print(json.dumps({"rows": rows, "missed": missed}, indent=None if options.json else 1))
    sys.exit(1 if missed else 0)


def plant(bug: Bug, copy: Path, with_long: bool) -> dict[str, object]:
    """Run the tests of a bug until the first failure, with the bug in the copy."""
    file = copy / bug.file
    text = file.read_text(encoding="utf-8")
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.file} has {text.count(bug.right)} times: {bug.right}")
    file.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    sources = [str(path) for path in copy.glob("packages/*/src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sources)}
    command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-W", "ignore", "--no-header"]
    command += [] if with_long else ["-m", "not long"]
    begun = time.perf_counter()
    try:
        run = subprocess.run(
            [*command, *bug.tests], cwd=copy, env=environment, capture_output=True, text=True
        )
    finally:
        file.write_text(text, encoding="utf-8")
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if run.returncode not in (0, 1) or any("::" not in line for line in failed):
        raise SystemExit(f"the tests of {bug.name} did not run:\n{run.stdout[-2000:]}{run.stderr}")
    found_by = ""
    if failed:
        found_by = failed[0].split(" - ")[0].split(maxsplit=1)[1]
    seconds = round(time.perf_counter() - begun, 1)
    return {"bug": bug.name, "file": bug.file, "found_by": found_by, "seconds": seconds}


if __name__ == "__main__":
    main()
