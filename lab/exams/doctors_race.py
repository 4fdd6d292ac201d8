"""Doctors of LeRobot datasets beside `understudy check`, on planted faults and on sound datasets.

    python lab/exams/doctors_race.py FOLDER [--only NAME ...] [--every N] [--out FILE]

FOLDER has an environment for each doctor, `FOLDER/NAME/bin`; one that is not there is left out and
named. The faults and the sound datasets are those of `planted_faults.py` in LeRobot v3.0;
the real recordings under $UNDERSTUDY_TEST_DATA are sound sets, too.

A doctor is read by its words alone, the same way for all, ours included: a line that has a word of
alarm (error, fail, warn, critical, issue, outlier and others), or an exit code above 0.

    noticed   the report on the faulty set has a line of alarm, without regard to numbers, that the
              report on the sound original lacks, or it alone ends with a code above 0
    placed    such a line names the episode of the fault, or its column or camera; of the faults
              that have one
    alarms    lines of alarm on all sound sets together, each kind of line once a set
    seconds   median of wall time on one fault
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import planted_faults

LIMIT_S = 120
ALARM = re.compile(
    r"error|fail|warn|critical|issue|problem|outlier|anomal|mismatch|corrupt|missing|suspicio|"
    r"defect|blocked|reject|invalid|✗|❌|⚠|✖|[Hh]igh:|severity",
    re.IGNORECASE,
)
CALM = re.compile(
    r"\b(no|0|zero) (\w+ ){0,2}(error|fail|warn|critical|issue|problem|outlier|anomal|mismatch|"
    r"missing|defect)|\b(errors?|failed|failures?|warnings?|critical|issues?|outliers?|missing|"
    r"defects?)\W{1,4}(0|none|\[\])\b",
    re.IGNORECASE,
)
DOCTORS: dict[str, list[str]] = {
    "understudy": [str(Path(sys.executable).with_name("understudy")), "check", "{}"],
    "lerobot-doctor": ["lerobot-doctor", "check", "-v", "{}"],
    "lerobot-quality-gates": ["lerobot-quality-gates", "check", "{}"],
    "kalanos": ["kalanos", "grade", "{}"],
    "rdq": ["rdq", "check", "{}"],
    "robot-data-audit": ["rda", "audit", "{}"],
    "raftaar": ["raftaar", "scan", "{}"],
    "robot-report-card": ["rrc", "score", "{}"],
    "deepen-grade": ["deepen", "grade", "{}"],
    "calibra-robotics": ["calibra", "--strict", "{}"],
    "adduct": ["adduct", "scan", "{}"],
    "datasetlint": ["datasetlint", "{}"],
    "robovet": ["robovet", "doctor", "{}"],
}
"""Doctor -> its command; {} is the dataset."""


class Said(NamedTuple):
    """What a doctor said about a dataset."""

    code: int
    alarms: dict[str, str]
    """A line of alarm without its numbers -> the line."""
    seconds: float


def ask(command: list[str], dataset: Path) -> Said:
    """Run a doctor on a dataset."""
    words = [word.replace("{}", str(dataset)) for word in command]
    environment = {**os.environ, "COLUMNS": "240", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        try:
            done = subprocess.run(
                words,
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Said(124, {}, LIMIT_S)
    seconds = time.perf_counter() - begun
    alarms = {}
    for line in done.stdout.replace(str(dataset), "DATASET").splitlines():
        if ALARM.search(line) and not CALM.search(line):
            shape = re.sub(r"[\d.,%+-]+", "#", line).strip()
            alarms[shape] = line.strip()
    return Said(done.returncode, alarms, seconds)


def places_of(fault: planted_faults.Fault) -> re.Pattern[str] | None:
    """Return the words that name the place of a fault; None without one."""
    words = [re.escape(name) for name in (fault.camera, fault.column) if name]
    if fault.episode is not None:
        words.append(rf"(?:episode|ep|episodes|traj\w*|demo)\w*\W{{0,8}}0*{fault.episode}\b")
        words.append(rf"\[(?:\d+, )*{fault.episode}(?:, \d+)*\]")
    return re.compile("|".join(words), re.IGNORECASE) if words else None


def examine(
    command: list[str], base: Path, faults: list[planted_faults.Fault], sound: dict[str, Path]
) -> dict[str, Any]:
    """Return what a doctor finds."""
    original = ask(command, base)
    noticed = []
    placed = []
    with_place = 0
    seconds = []
    for fault in faults:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "dataset")
            shutil.copytree(base, target)
            fault.plant(target)
            said = ask(command, target)
        seconds.append(said.seconds)
        new = [line for shape, line in said.alarms.items() if shape not in original.alarms]
        if new or (said.code and not original.code):
            noticed.append(fault.name)
        place = places_of(fault)
        with_place += place is not None
        lines = [line for line in said.alarms.values() if line not in original.alarms.values()]
        if place is not None and any(place.search(line) for line in lines):
            placed.append(fault.name)
    alarms = {name: len(ask(command, path).alarms) for name, path in sound.items()}
    return {
        "noticed": len(noticed),
        "placed": len(placed),
        "with_place": with_place,
        "faults": len(faults),
        "alarms": sum(alarms.values()),
        "alarms_by_set": alarms,
        "refuses_sound": bool(original.code),
        "seconds": round(median(seconds), 2),
        "names": noticed,
    }


def version_in(folder: Path, name: str) -> str:
    """Return the release of a doctor in its environment."""
    found = subprocess.run(
        [
            folder / name / "bin/python",
            "-c",
            f"import importlib.metadata as m; print(m.version('{name}'))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip()


def main(arguments: list[str] | None = None) -> None:
    """Print a table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(DOCTORS))
    parser.add_argument("--every", type=int, default=1, help="take every Nth fault")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    faults = [fault for fault in planted_faults.FAULTS if fault.version == "v3.0"][:: args.every]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        base = Path(place, "v3.0")
        planted_faults.write_v30(base)
        sound = {"simulated arm": base}
        for name, make in planted_faults.SOUND.items():
            sound[name] = Path(place, name.replace(" ", "_"))
            make(sound[name])
        data = Path(os.environ.get("UNDERSTUDY_TEST_DATA", os.devnull))
        if (data / "g1_v30").is_dir():
            sound["g1_v30"] = data / "g1_v30"
        for name in args.only:
            command = DOCTORS[name]
            release = version("understudy") if name == "understudy" else ""
            if name != "understudy":
                if not (args.folder / name / "bin" / command[0]).exists():
                    print(f"{name}: not installed", file=sys.stderr)
                    continue
                release = version_in(args.folder, name)
                command = [str(args.folder / name / "bin" / command[0]), *command[1:]]
            results[name] = {"release": release, **examine(command, base, faults, sound)}
            found = results[name]
            print(
                f"{name} {release}: {found['noticed']} of {found['faults']} noticed, "
                f"{found['placed']} of {found['with_place']} placed, {found['alarms']} lines of "
                f"alarm on {len(sound)} sound sets, {found['seconds']} s",
                flush=True,
            )
    if args.out:
        content = {"date": time.strftime("%Y-%m-%d"), "sound": sorted(sound), "doctors": results}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
