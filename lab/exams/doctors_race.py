"""Doctors of LeRobot datasets beside `understudy check`, on planted faults and on sound datasets.

    python lab/exams/doctors_race.py FOLDER [--only NAME ...] [--every N] [--kept FILE ...]
                                            [--out FILE]

FOLDER has an environment for each doctor, `FOLDER/NAME/bin`; one that is not there is left out and
named. The faults and the sound datasets are those of `planted_faults.py` in LeRobot v3.0;
the real recordings under $UNDERSTUDY_TEST_DATA are sound sets, too. The doctors take turns at each
dataset. Reports are appended to the first file of --kept; those in any of them are not asked again.

A doctor is read by its words alone, the same way for all, ours included: a line that has a word of
alarm (error, fail, warn, critical, issue, outlier and others), or an exit code above 0.

    noticed   the report on the faulty set has a line of alarm, without regard to numbers but those
              of episodes, that the report on the sound original lacks, or it alone ends with a code
              above 0
    placed    such a line, or the heading above it, names the episode of the fault, or its column or
              camera; of the faults that have one
    alarms    lines of alarm on all sound sets together, each kind of line once a set
    seconds   median CPU time on one fault, of the process and its children
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import planted_faults

LIMIT_S = 600
ALARM = re.compile(
    r"error|fail|warn|critical|issue|problem|outlier|anomal|mismatch|corrupt|missing|suspicio|"
    r"defect|blocked|reject|invalid|✗|❌|⚠|✖|[Hh]igh:|severity|"
    r"(?-i:^(?:HIGH|MEDIUM)\b)",
    re.IGNORECASE,
)
CALM = re.compile(
    r"\b(no|0|zero) (\w+ ){0,2}(error|fail|warn|critical|issue|problem|outlier|anomal|mismatch|"
    r"missing|defect)|\b(errors?|failed|failures?|warnings?|critical|issues?|outliers?|missing|"
    r"defects?)\W{1,4}(0|none|\[\])\b",
    re.IGNORECASE,
)
EPISODE = re.compile(r"(?:episode|ep|traj|trajectory|demo)s?[\W_]{0,3}\d+", re.IGNORECASE)
NUMBER = re.compile(r"[\d.,%+-]+")
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
    "datasetlint": ["datasetlint", "--adapter", "lerobot", "validate", "{}"],
    "lerobot-lint": ["lelint", "check", "{}"],
    "robovet": ["robovet", "doctor", "{}"],
}
"""Doctor -> its command; {} is the dataset."""


class Said(NamedTuple):
    """What a doctor said about a dataset."""

    code: int
    alarms: list[str]
    """As of `alarms_of`."""
    seconds: float


def ask(command: list[str], dataset: Path) -> Said:
    """Run a doctor on a dataset."""
    words = [word.replace("{}", str(dataset)) for word in command]
    environment = {**os.environ, "COLUMNS": "240", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each run compiles the doctor
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
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
            return Said(124, [], LIMIT_S)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    alarms = alarms_of(done.stdout.replace(str(dataset), "DATASET"))
    return Said(done.returncode, alarms, round(seconds, 2))


def alarms_of(text: str) -> list[str]:
    """Lines of alarm, each behind the last line that names an episode, where it names none."""
    alarms = []
    heading = ""
    for line in text.splitlines():
        if EPISODE.search(line):
            heading = line.strip()
        if ALARM.search(line) and not CALM.search(line):
            is_heading = not heading or EPISODE.search(line)
            alarms.append(line.strip() if is_heading else f"{heading} :: {line.strip()}")
    return alarms


def shape_of(line: str) -> str:
    """A line without its numbers, but those of episodes."""
    parts = EPISODE.split(line)
    named = [*map(str.lower, EPISODE.findall(line)), ""]
    return "".join(NUMBER.sub("#", part) + name for part, name in zip(parts, named))


def kind_of(line: str) -> str:
    """A line without any number, and without its heading."""
    return NUMBER.sub("#", line.rpartition(" :: ")[2])


def places_of(fault: planted_faults.Fault) -> re.Pattern[str] | None:
    """Return the words that name the place of a fault; None without one."""
    words = [re.escape(name) for name in (fault.camera, fault.column) if name]
    if fault.episode is not None:
        words.append(rf"(?:episode|ep|episodes|traj\w*|demo)\w*\W{{0,8}}0*{fault.episode}\b")
        words.append(rf"(?:episode|ep)s?_0*{fault.episode}\b")
        words.append(rf"\[(?:\d+, )*{fault.episode}(?:, \d+)*\]")
    return re.compile("|".join(words), re.IGNORECASE) if words else None


class Race:
    """Reports of doctors, kept in files of JSON lines.

    Args:
        commands: doctor -> its command.
        kept: files of reports; the first one is extended.
    """

    def __init__(self, commands: Mapping[str, list[str]], kept: Sequence[Path]) -> None:
        self.commands = commands
        self._kept = kept
        self._said: dict[tuple[str, str], Said] = {}
        for path in kept:
            for line in path.read_text().splitlines() if path.exists() else ():
                doctor, name, *said = json.loads(line)
                self._said[doctor, name] = Said(*said)

    def ask_all(self, name: str, dataset: Path) -> None:
        """Ask each doctor about a dataset, unless its report is there."""
        for doctor, command in self.commands.items():
            if (doctor, name) not in self._said:
                said = ask(command, dataset)
                self._said[doctor, name] = said
                if self._kept:
                    with self._kept[0].open("a") as file:
                        file.write(json.dumps([doctor, name, *said]) + "\n")

    def has(self, name: str) -> bool:
        """Whether all reports on a dataset are there."""
        return all((doctor, name) in self._said for doctor in self.commands)

    def result(
        self, doctor: str, faults: Sequence[planted_faults.Fault], sound: Sequence[str]
    ) -> dict[str, Any]:
        """Return what a doctor finds."""
        original = self._said[doctor, sound[0]]
        known = set(map(shape_of, original.alarms))
        noticed = []
        placed = []
        with_place = 0
        for fault in faults:
            said = self._said[doctor, fault.name]
            new = [line for line in said.alarms if shape_of(line) not in known]
            if new or (said.code and not original.code):
                noticed.append(fault.name)
            place = places_of(fault)
            with_place += place is not None
            if place is not None and any(map(place.search, new)):
                placed.append(fault.name)
        alarms = {name: len(set(map(kind_of, self._said[doctor, name].alarms))) for name in sound}
        return {
            "noticed": len(noticed),
            "placed": len(placed),
            "with_place": with_place,
            "faults": len(faults),
            "alarms": sum(alarms.values()),
            "sound_sets": len(sound),
            "alarms_by_set": alarms,
            "refuses_sound": bool(original.code),
            "cpu_seconds": round(median(self._said[doctor, one.name].seconds for one in faults), 2),
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


def commands_in(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands of the doctors that are installed, and name the others."""
    commands = {}
    for name in names:
        command = DOCTORS[name]
        program = folder / name / "bin" / command[0]
        if name == "understudy" or program.exists():
            commands[name] = [str(program) if name != "understudy" else command[0], *command[1:]]
        else:
            print(f"{name}: not installed", file=sys.stderr)
    return commands


def main(arguments: list[str] | None = None) -> None:
    """Print a table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(DOCTORS))
    parser.add_argument("--every", type=int, default=1, help="take every Nth fault")
    parser.add_argument("--kept", nargs="+", type=Path, default=[], help="files of reports")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    faults = [fault for fault in planted_faults.FAULTS if fault.version == "v3.0"][:: args.every]
    race = Race(commands_in(args.folder, args.only), args.kept)
    names = ["simulated arm", *planted_faults.SOUND]
    with tempfile.TemporaryDirectory() as place:
        base = Path(place, "v3.0")
        planted_faults.write_v30(base)
        race.ask_all(names[0], base)
        for name, make in planted_faults.SOUND.items():
            if not race.has(name):
                make(Path(place, name.replace(" ", "_")))
            race.ask_all(name, Path(place, name.replace(" ", "_")))
        recorded = Path(os.environ.get("UNDERSTUDY_TEST_DATA", os.devnull), "g1_v30")
        if recorded.is_dir():
            race.ask_all("g1_v30", recorded)
            names.append("g1_v30")
        for fault in faults:
            if not race.has(fault.name):
                target = Path(place, fault.name)
                shutil.copytree(base, target)
                fault.plant(target)
                race.ask_all(fault.name, target)
                shutil.rmtree(target)
    results: dict[str, Any] = {}
    for name in race.commands:
        release = version(name) if name == "understudy" else version_in(args.folder, name)
        found = race.result(name, faults, names)
        results[name] = {"release": release, **found}
        print(
            f"{name} {release}: {found['noticed']} of {found['faults']} noticed, "
            f"{found['placed']} of {found['with_place']} placed, {found['alarms']} lines of alarm "
            f"on {len(names)} sound sets, {found['cpu_seconds']} s"
        )
    if args.out:
        content = {"date": time.strftime("%Y-%m-%d"), "sound": sorted(names), "doctors": results}
        args.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
