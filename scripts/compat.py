"""`make compat`: test environments with other releases of all dependencies, and compare batches to
the bit.

    python scripts/compat.py [NAME ...] [--keep] [--pytest "ARGUMENTS"]

    oldest    Python 3.11, the lowest release that each requirement allows, torch 2.7.1
    lerobot   Python 3.12, LeRobot 0.6.1 with its own pins, and understudy beside it; its networks
              of pi0.5 and pi0 run beside ours (UNDERSTUDY_PI05_SITE, UNDERSTUDY_PI05_PORT)
    newest    Python 3.13, the newest release of everything

Each environment has the wheels of packages/ with most extras, and runs the tests on the sources of
this checkout. `batch_digests.py` reads the same files in each of them and in the environment of
`make test`. Results go into the table of lab/journal/compatibility.md; rows of environments left
out of this run stay. CUDA builds of torch are included (3 to 4 GB each); they run on a CPU. All
files are in .compat/. Needs uv, which scripts/setup installs, and an interpreter of each version:
PYTHON312=..., `python3.12` on the PATH, or one from pyenv or uv.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".compat"
PAGE = ROOT / "lab" / "journal" / "compatibility.md"
BEGIN = "<!-- begin of the text by `make compat` -->"
END = "<!-- end of the text by `make compat` -->"
EXTRAS = {
    "understudy": "pi05,tensorboard,wandb",
    "understudy-data": "torch,s3,hub",
    "understudy-tools": "import",
    "understudy-robot": "demo,sim,gymnasium",
}
"""Extras of the distributions that are tested."""
TABLED = ("torch", "numpy", "av", "ffmpeg", "pyarrow", "fsspec", "safetensors", "pillow", "lerobot")


@dataclass(frozen=True)
class Environment:
    name: str
    python: str
    about: str
    installs: tuple[tuple[str, ...], ...]
    """Arguments of each call of `uv pip install`.

    {ours} are the distributions of packages/ with their extras, {tests} the packages of the tests,
    and {floors} the requirements of ours, one by one: uv takes the lowest release of named packages
    only, not of their dependencies. A later call keeps installed releases.
    """
    site_variables: tuple[str, ...] = ()
    """Environment variables of the tests that name the folder of its packages."""
    examples: tuple[str, ...] = ()
    """Examples that must train here, on a recording of their own and on g1_v30 if present."""


ENVIRONMENTS = (
    Environment(
        "oldest",
        "3.11",
        "the lowest releases allowed",
        (
            ("--resolution", "lowest-direct", "torch==2.7.1", "{floors}", "{ours}"),
            ("{tests}",),
        ),
    ),
    Environment(
        "lerobot",
        "3.12",
        "LeRobot 0.6.1 with its own pins",
        (("lerobot[dataset]==0.6.1", "transformers==5.5.4", "{ours}", "{tests}"),),
        ("UNDERSTUDY_PI05_SITE", "UNDERSTUDY_PI05_PORT"),
        ("lerobot_act",),
    ),
    Environment("newest", "3.13", "the newest of all", (("--upgrade", "{ours}", "{tests}"),)),
)


class Failed(Exception):
    """An environment cannot be made or fails its tests. The message is one line."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *(each.name for each in ENVIRONMENTS)])
    parser.add_argument("--keep", action="store_true", help="use an existing environment as it is")
    parser.add_argument("--pytest", default="-n 2", help='arguments for pytest (default "-n 2")')
    args = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    reference = digest("default", Path(sys.executable))
    failures = 0
    build()
    commit = run(["git", "describe", "--always", "--dirty"]).strip()
    for each in [each for each in ENVIRONMENTS if not args.names or each.name in args.names]:
        try:
            row = check(each, reference, args) | {"commit": commit}
            (PLACE / f"{each.name}.json").write_text(json.dumps(row, indent=1) + "\n")
            failures += row["failed"] > 0 or row["different"] > 0
        except (Failed, subprocess.CalledProcessError) as error:
            failures += 1
            print(f"compat {each.name}: {error}", file=sys.stderr)
    write_page(reference)
    return min(1, failures)


def check(each: Environment, reference: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Test one environment and return its row of the table.

    Raises:
        Failed: pytest gives no results.
    """
    python = PLACE / each.name / "bin" / "python"
    if not (args.keep and python.exists()):
        make(each)
    for example in each.examples:
        for data in ([], [str(recording())]) if recording() else ([],):
            run([str(python), str(ROOT / "examples" / f"{example}.py"), *data])
    found = digest(each.name, python)
    cases, different = compare(reference["batches"], found["batches"])
    for line in different[:20]:
        print(f"compat {each.name}: differs: {line}", file=sys.stderr)
    report(f"{each.name}: pytest {args.pytest}")
    junit = PLACE / f"{each.name}.xml"
    junit.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", f"--junitxml={junit}", *shlex.split(args.pytest)]
    site = run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    ).strip()
    variables = dict.fromkeys(each.site_variables, site)
    status = subprocess.run(command, cwd=ROOT, env=bare() | variables).returncode
    if not junit.exists():
        raise Failed(f"pytest ended with {status} before it ran a test")
    return {
        "about": each.about,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": found["versions"],
        "batches": cases,
        "different": len(different),
        "examples": list(each.examples),
        "pytest": args.pytest,
        **counts(junit),
    }


def make(each: Environment) -> None:
    """Make the virtual environment from scratch."""
    place = PLACE / each.name
    shutil.rmtree(place, ignore_errors=True)
    run([uv(), "venv", "--quiet", "--python", interpreter(each.python), str(place)])
    kept = PLACE / f"{each.name}.constraints"
    for number, arguments in enumerate(each.installs):
        report(f"{each.name}: installing {' '.join(arguments)}")
        held = ["-c", str(kept)] if number else []
        where = ["--python", str(place / "bin" / "python")]
        given = {"{ours}": distributions(), "{tests}": test_packages(), "{floors}": requirements()}
        named = [word for one in arguments for word in given.get(one, [one])]
        run(
            [
                uv(),
                "pip",
                "install",
                "--quiet",
                "--find-links",
                str(PLACE / "dist"),
                *where,
                *held,
                *named,
            ]
        )
        frozen = [
            line
            for line in run([uv(), "pip", "freeze", *where]).splitlines()
            if re.match(r"[\w.-]+==", line)
        ]
        # packages of the tests may need others than the lowest
        if any("{floors}" in words for words in each.installs):
            frozen = [
                line
                for line in frozen
                if line.partition("==")[0] in {"torch", *map(package_of, requirements())}
            ]
        kept.write_text("\n".join(frozen) + "\n")


def papers(name: str) -> dict[str, Any]:
    """The table `project` of a distribution's pyproject.toml."""
    project: dict[str, Any] = tomllib.loads(
        (ROOT / "packages" / name / "pyproject.toml").read_text()
    )["project"]
    return project


def names() -> list[str]:
    """Distributions of the product."""
    others = ("understudy-conformance", "understudy-lerobot-service")
    return [
        path.parent.name
        for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
        if path.parent.name not in others
    ]


def distributions() -> list[str]:
    """The wheels of `build`, with their extras, as arguments of `pip install`."""
    found = []
    for name in names():
        (wheel,) = (PLACE / "dist").glob(f"{name.replace('-', '_')}-*.whl")
        extras = f"[{EXTRAS[name]}]" if name in EXTRAS else ""
        found.append(f"{name}{extras} @ {wheel.as_uri()}")
    return found


def test_packages() -> list[str]:
    """Packages of the tests."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return list(groups["test"])


def requirements() -> list[str]:
    """Requirements of all distributions and of their extras."""
    asked = set[str]()
    for name in names():
        project = papers(name)
        extras = EXTRAS.get(name, "")
        lines = [*project["dependencies"]]
        todo = extras.split(",") if extras else []
        while todo:
            for one in project["optional-dependencies"][todo.pop()]:
                inner = re.fullmatch(rf"{name}\[([\w,]+)\]", one)
                todo += inner[1].split(",") if inner else []
                lines += [] if inner else [one]
        asked |= {line for line in lines if not line.startswith("understudy")}
    return sorted(asked)


def package_of(requirement: str) -> str:
    """Name of the package of a requirement, as `pip freeze` spells it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")  # type: ignore[index]


def build() -> None:
    """Build the wheels of all distributions."""
    out = PLACE / "dist"
    shutil.rmtree(out, ignore_errors=True)
    for name in names():
        run(
            [
                uv(),
                "build",
                "--quiet",
                "--wheel",
                "--out-dir",
                str(out),
                str(ROOT / "packages" / name),
            ]
        )


def interpreter(version: str) -> str:
    """A working Python of this version.

    Raises:
        Failed: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    named = os.environ.get(f"PYTHON{version.replace('.', '')}")
    known = [
        named,
        shutil.which(f"python{version}"),
        *sorted(pyenv.glob(f"{version}.*/bin/python{version}")),
    ]
    for candidate in [*map(str, filter(None, known)), version]:
        if candidate == version:  # one of uv's
            done = subprocess.run(
                [uv(), "python", "find", version], capture_output=True, text=True, cwd="/"
            )
            candidate = done.stdout.strip()
            if done.returncode:
                continue
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        # a shim may fail for a version that it names
        done = subprocess.run(asked, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    raise Failed(f"no Python {version} here: install one, or set PYTHON{version.replace('.', '')}")


def digest(name: str, python: Path) -> dict[str, Any]:
    """Versions and digests of the batches in an environment. The first one records the datasets."""
    data = PLACE / "data"
    out = PLACE / f"{name}.digests.json"
    script = str(ROOT / "scripts" / "batch_digests.py")
    report(f"{name}: batches")
    if name == "default":
        run([str(python), script, "record", str(data)])
    run([str(python), script, "digest", str(data), str(out)])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def compare(
    ours: dict[str, list[dict[str, str]]], theirs: dict[str, list[dict[str, str]]]
) -> tuple[int, list[str]]:
    """Number of compared batches, and "setting, number: keys" of each difference."""
    different = [f"{setting}: only on one side" for setting in sorted(ours.keys() ^ theirs.keys())]
    for setting in sorted(ours.keys() & theirs.keys()):
        if len(ours[setting]) != len(theirs[setting]):
            different.append(f"{setting}: {len(ours[setting])} and {len(theirs[setting])} batches")
        for number, (a, b) in enumerate(zip(ours[setting], theirs[setting])):
            if keys := sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key)):
                different.append(f"{setting}, batch {number}: {', '.join(keys)}")
    return sum(map(len, ours.values())), different


def counts(junit: Path) -> dict[str, Any]:
    """Tests by outcome, with the reasons of skips."""
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    skipped = [skip for case in cases for skip in case.iter("skipped")]
    bad = [
        case for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    for case in bad:
        print(f"failed: {case.get('classname')}::{case.get('name')}", file=sys.stderr)
    return {
        "passed": len(cases) - len(skipped) - len(bad),
        "failed": len(bad),
        "skipped": dict(Counter(skip.get("message") or "" for skip in skipped).most_common()),
    }


def recording() -> Path | None:
    """A dataset of a real robot, if there is one."""
    root = Path(os.environ.get("UNDERSTUDY_TEST_DATA") or "/nowhere", "g1_v30")
    return root if root.is_dir() else None


def write_page(reference: dict[str, Any]) -> None:
    """Write the part of PAGE between the two marks, from all available results."""
    rows = {each.name: PLACE / f"{each.name}.json" for each in ENVIRONMENTS}
    found = {name: json.loads(path.read_text()) for name, path in rows.items() if path.exists()}
    tabled = [name for name in TABLED if any(name in row["versions"] for row in found.values())]
    table = [["", *found, "make test"], ["---"] * (len(found) + 2)]
    table.append(["contents", *(row["about"] for row in found.values()), "constraints.txt"])
    table.append(["date", *(row["date"] for row in found.values()), ""])
    table.append(["commit", *(row["commit"] for row in found.values()), ""])
    versions = [*(row["versions"] for row in found.values()), reference["versions"]]
    table += [[name, *(each.get(name, "-") for each in versions)] for name in ("python", *tabled)]
    table.append(["pytest", *(f"`{row['pytest']}`" for row in found.values()), ""])
    trained = [", ".join(row["examples"]) or "-" for row in found.values()]
    table.append(["trained", *trained, ""])
    table.append(["tests passed", *(str(row["passed"]) for row in found.values()), ""])
    table.append(["tests failed", *(str(row["failed"]) for row in found.values()), ""])
    table.append(
        ["tests skipped", *(str(sum(row["skipped"].values())) for row in found.values()), ""]
    )
    same = [f"{row['batches'] - row['different']} of {row['batches']}" for row in found.values()]
    table.append(["batches equal to the bit", *same, "compared with"])
    lines = ["| " + " | ".join(row) + " |" for row in table]
    for name, row in found.items():
        lines += ["", f"Skipped in `{name}`:", ""]
        lines += [
            f"* {count}: {' '.join(reason.split())}" for reason, count in row["skipped"].items()
        ] or ["* none"]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after)
    print("\n".join(lines))


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        sys.exit("compat: needs uv: pip install uv")
    return found


def bare() -> dict[str, str]:
    """Environment variables of child processes, without our sources on the path."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "UV_FIND_LINKS")
    return {key: value for key, value in os.environ.items() if key not in left_out} | threads


def run(command: list[str]) -> str:
    """Output of a command.

    Raises:
        Failed: it fails; with the end of its error output.
    """
    done = subprocess.run(command, cwd=ROOT, env=bare(), capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def report(line: str) -> None:
    print(f"compat {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
