"""Time and memory of the commands as a dataset grows, with the exponent of growth.

    python lab/benchmarks/sizes.py                               0.27, 2.7 and 18.8 million frames
    python lab/benchmarks/sizes.py --millions 0.27 2.7 --only check

The datasets are those of `rows.py`. Each command runs in a process of its own with all settings at
their defaults.

    cpu_s, wall_s       of the command with its children
    peak_mb             largest resident memory of one process
    exponent            of cpu_s from one size to the next: 1 grows like the dataset
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import common
import parsers
import rows


def commands(root: Path, out: Path) -> dict[str, list[str]]:
    """Name -> arguments of the program."""
    run = [
        "train",
        "--data.root",
        str(root),
        "--steps",
        "1",
        "--batch-size",
        "8",
        "--val.frames",
        "16",
    ]
    edit = ["--task", "pick the cup", "--drop-features", *rows.CAMERAS]
    return {
        "train, first start": [*run, "--output-dir", str(out / "run")],
        "train, second start": [*run, "--output-dir", str(out / "run2")],
        "audit": ["audit", str(out / "run")],
        "order explain": ["order", "explain", str(root), "--batch-size", "32"],
        "statistics": [
            "statistics",
            "--data.root",
            str(root),
            "--data.cameras",
            "none",
            "--output-dir",
            str(out / "s"),
        ],
        "check --depth rows": ["check", str(root), "--depth", "rows"],
        "edit": ["edit", str(root), str(out / "edited"), *edit],
        "edit, 2 workers": ["edit", str(root), str(out / "edited2"), *edit, "--workers", "2"],
        "view": ["view", str(root), "--export", str(out / "page"), "--episodes", "0", "1"],
    }


def run(arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run the program in a process of its own: its figures."""
    script = (
        "import resource, subprocess, sys, time, json\n"
        "begun = time.perf_counter()\n"
        "done = subprocess.run([sys.executable, '-m', 'understudy', *sys.argv[1:]], "
        "capture_output=True, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps({'wall_s': time.perf_counter() - begun, 'cpu_s': used.ru_utime + "
        "used.ru_stime,\n"
        "    'peak_mb': used.ru_maxrss / 1024, 'code': done.returncode, 'error': "
        "done.stderr[-300:]}))"
    )
    command = [sys.executable, "-c", script, *arguments]
    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    result: dict[str, Any] = json.loads(said)
    if result["code"] not in (0, 1):
        common.say(arguments, result["error"])
    return result


def main() -> None:
    parser = parsers.make_parser(__doc__, whole=True)
    parser.add_argument("--millions", type=float, nargs="+", default=[0.27, 2.7, 18.8])
    parser.add_argument(
        "--linked", type=float, default=50, help="million frames from which on data files are links"
    )
    parser.add_argument("--only", default="", help="commands with this in their name")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="folder for the datasets")
    parser.add_argument("--sets", default="", help="folder with datasets by their size, as '18.8'")
    options = parser.parse_args()
    table: dict[str, list[dict[str, Any]]] = {}
    for millions in options.millions:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            root = Path(options.sets, str(millions)) if options.sets else Path(folder, "set")
            if not options.sets:
                rows.write(root, round(millions * 1e6), round(options.linked * 1e6))
            environment = {
                **os.environ,
                "XDG_CACHE_HOME": f"{folder}/cache",
                "XDG_CONFIG_HOME": f"{folder}/config",
            }
            for name, arguments in commands(root, Path(folder)).items():
                if options.only in name:
                    found = run(arguments, environment) | {"frames": round(millions * 1e6)}
                    if before := table.setdefault(name, []):
                        growth = math.log(found["frames"] / before[-1]["frames"])
                        found["exponent"] = round(
                            math.log(found["cpu_s"] / before[-1]["cpu_s"]) / growth, 2
                        )
                    table[name].append(found)
                    common.say(name, {key: value for key, value in found.items() if key != "error"})
    print(
        json.dumps(
            {"commands": table, "conditions": common.conditions()},
            indent=None if options.json else 1,
        )
    )


if __name__ == "__main__":
    main()
