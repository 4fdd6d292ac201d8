"""The trainer under SIGKILL: a hundred kills at random instants, also inside saves, also of one
rank of two.

    python lab/benchmarks/soak_trainer.py [--kills 100] [--per-run 4] [--kinds 1 2 3 4 5]
        [--policy flow] [--lora 0] [--lora-base stored] [--seed 0] [--json] [--torn]

Runs of five kinds (one process and two, sharded or not, saves in the training or beside it, 2 -> 1
-> 2 processes) are killed until they are done. Each must equal the uninterrupted run of its kind:
series, tensors and policy bit for bit. Where the number of processes changes, every position is
used once and losses are equal to rounding. After every kill, each folder with a checkpoint's name
must hold that step of the uninterrupted run.

Prints lines for lab/journal/reliability.md; exit code 1 if a check fails. `--torn` is the negative
control: it writes checkpoints under their final name, and the checks must fail.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import conditions
from parsers import make_parser
from understudy.testing import killed
from understudy.testing.runs import tiny_dataset

POLICIES = ("flow", "pi05", "world_action")


def main() -> int:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--per-run", type=int, default=4)
    parser.add_argument("--kinds", type=int, nargs="+", default=range(1, 1 + len(killed.KINDS)))
    parser.add_argument(
        "--policy", choices=POLICIES, default="flow", help="pi05: needs the extra pi05"
    )
    parser.add_argument("--lora", type=int, default=0, help="rank of low-rank adapters in all runs")
    parser.add_argument("--lora-base", choices=("stored", "float32", "bfloat16"), default="stored")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torn", action="store_true")
    options = parser.parse_args()
    if options.torn:
        killed.torn()
    with tempfile.TemporaryDirectory(prefix="understudy-soak-") as folder:
        data = tiny_dataset(Path(folder) / "dataset")
        changes = {"lora": options.lora, "lora_base": options.lora_base, "policy": options.policy}
        kinds = tuple(replace(killed.KINDS[number - 1], **changes) for number in options.kinds)
        tally = killed.main(data, Path(folder), kinds, options.kills, options.per_run, options.seed)
    where = conditions()
    if options.json:
        print(json.dumps({**tally, "conditions": where | {"seed": options.seed}}))
    else:
        print(
            f"| trainer: SIGKILL, resume, compare | {tally['kills']} kills, {tally['in_saves']} of "
            f"them inside a save; {tally['finished']} runs of {len(tally['kinds'])} kinds | "
            f"{len(tally['wrong'])} differences; {tally['looked_at']} checkpoints read, none torn; "
            f"a rank left alone was gone after at most {tally['slowest']:.1f} s | "
            f"{tally['seconds'] / 60:.0f} min, {where['date']}, torch {where['torch']}, "
            f"{where['cores']} cores, seed {options.seed} |"
        )
        for line in tally["wrong"]:
            print(line, file=sys.stderr)
    return int(bool(tally["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
