"""`nox -s exams`: run tests and tools of other projects on understudy, and write the table of
lab/journal/exams.md.

    python scripts/exams.py [NAME ...] [--pytest "ARGUMENTS"]

Foreign files come from public snapshots, at the commits listed here, into .exams/ (ignored by git).
Their code runs with your rights; it gets few environment variables, none of your keys, and .exams/
as its home. A shim in lab/exams/, a pytest plugin, connects them to understudy;
`lab/exams/shared.py` has the rules for the tests that fail. Snapshots are fetched from github.com,
or read from git repositories in a folder: UNDERSTUDY_EXAM_SOURCES=DIR with DIR/OWNER+NAME. As many
exams run at a time as there are cores. An exam whose packages are not installed is left out. A run
of some exams by name leaves the page as it is.
"""

import argparse
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".exams"
PAGE = ROOT / "lab" / "journal" / "exams.md"
SNAPSHOTS = Lock()
"""Several exams have the same repository."""
BEGIN = "<!-- begin of the text by `nox -s exams` -->"
END = "<!-- end of the text by `nox -s exams` -->"


@dataclass(frozen=True)
class Exam:
    name: str
    about: str
    shim: str
    """Module of lab/exams/ that pytest loads as a plugin."""
    files: tuple[str, ...]
    """Test files: of the snapshot, or of lab/exams/ where `repository` is empty or the file exists
    there.
    """
    repository: str = ""
    """OWNER/NAME."""
    commit: str = ""
    release: str = ""
    """Tag of the commit, if it has one."""
    paths: tuple[str, ...] = ()
    """Files and folders of the snapshot that the tests need."""
    packages: tuple[str, ...] = ()
    """Installed packages that it needs; their versions are published."""


LEROBOT = (
    "huggingface/lerobot",
    "7e241bd630a3719a56157a497ce5d08f244784f1",
    "v0.6.1",
    ("tests",),
    ("lerobot",),
)
EXAMS: tuple[Exam, ...] = (
    Exam(
        "lerobot-folders",
        "Every dataset that LeRobot's own tests write: each item, read by LeRobot and by "
        "understudy.",
        "lerobot_folders",
        ("lab/exams/lerobot_folders_test.py",),
        *LEROBOT,
    ),
    Exam(
        "lerobot-tools",
        "LeRobot's tools for datasets, by `understudy edit`.",
        "lerobot_data",
        ("tests/datasets/test_dataset_tools.py",),
        *LEROBOT,
    ),
    Exam(
        "lerobot-statistics",
        "LeRobot's statistics, sampler and time windows, by ours.",
        "lerobot_data",
        tuple(
            f"tests/datasets/test_{name}.py"
            for name in ("compute_stats", "sampler", "delta_timestamps")
        ),
        *LEROBOT,
    ),
    Exam(
        "lerobot-service",
        "LeRobot's asynchronous inference, by the service of "
        "`packages/understudy-lerobot-service`.",
        "lerobot_service",
        tuple(
            f"tests/async_inference/test_{name}.py"
            for name in ("e2e", "helpers", "policy_server", "robot_client")
        ),
        *LEROBOT,
    ),
    Exam(
        "lerobot-policies",
        "LeRobot's real-time chunking and normalization, on the arithmetic of understudy.",
        "lerobot_policies",
        (
            *(
                f"tests/policies/rtc/test_{name}.py"
                for name in (
                    "action_interpolator",
                    "action_queue",
                    "configuration_rtc",
                    "debug_tracker",
                    "latency_tracker",
                    "modeling_rtc",
                    "rtc_relative_actions",
                )
            ),
            "tests/processor/test_normalize_processor.py",
        ),
        *LEROBOT[:3],
        ("tests", "src/lerobot/policies/rtc"),
        ("lerobot",),
    ),
    Exam(
        "lerobot-main",
        "Memory, training with given actions and moving averages of LeRobot's main branch, "
        "likewise.",
        "lerobot_policies",
        (
            *(
                f"tests/policies/pi0_pi05/test_pi05_{name}.py"
                for name in ("memory", "training_time_rtc")
            ),
            "tests/training/test_ema.py",
        ),
        "huggingface/lerobot",
        "7427f31801f944f5ec9ce53cda02862ce7d1638b",
        packages=("lerobot", "transformers", "diffusers"),
    ),
    Exam(
        "mosaic",
        "Partitions, shuffles, mixtures and samplings of MosaicML Streaming, by `Order` and "
        "`batch_positions`.",
        "mosaic",
        tuple(f"tests/test_{name}.py" for name in ("partition", "shuffle", "mixing", "sampling")),
        "mosaicml/streaming",
        "adeeeebe8f5d42cb429c05bd4e62df2176ef20ab",
        "v0.13.0",
        (
            *(f"tests/test_{name}.py" for name in ("partition", "shuffle", "mixing", "sampling")),
            "streaming/base/world.py",
        ),
    ),
    Exam(
        "grain",
        "Grain's own datasets with the shuffle, the mixtures, the samplers and the elastic "
        "iterator of understudy.",
        "grain_order",
        (
            "grain/_src/python/experimental/index_shuffle/python/index_shuffle_test.py",
            "grain/_src/python/samplers_test.py",
            *(
                f"grain/_src/python/dataset/transformations/{name}_test.py"
                for name in ("shuffle", "mix")
            ),
            "grain/_src/python/dataset/elastic_iterator_test.py",
        ),
        "google/grain",
        "d2568262e43ef1e43a7400e59caba2b2f3e1c35f",
        "v0.2.18",
        packages=("grain",),
    ),
    Exam(
        "torchdata",
        "`StatefulDataLoader` with `EpisodeSampler` for its own samplers.",
        "torchdata_sampler",
        (
            "test/stateful_dataloader/test_sampler.py",
            "test/stateful_dataloader/test_state_dict.py::TestStatefulDataLoaderMap_shard1",
            "test/stateful_dataloader/test_state_dict.py::TestNotStatefulSamplerSDL_shard0",
        ),
        "pytorch/data",
        "377e64c1be69a9be6649d14c9e3664070323e464",
        "v0.11.0",
        ("test/stateful_dataloader",),
        packages=("torchdata", "parameterized"),
    ),
    Exam(
        "openpi",
        "Statistics, relative actions, loader, LoRA, messages and images of openpi and its client.",
        "openpi_names",
        (
            *(
                f"src/openpi/{name}_test.py"
                for name in (
                    "shared/normalize",
                    "transforms",
                    "training/data_loader",
                    "models/lora",
                )
            ),
            *(
                f"packages/openpi-client/src/openpi_client/{name}_test.py"
                for name in ("msgpack_numpy", "image_tools")
            ),
        ),
        "Physical-Intelligence/openpi",
        "15a9616a00943ada6c20a0f158e3adb39df2ccac",
        packages=("dm-tree",),
    ),
    Exam(
        "opentau",
        "Statistics of differences, norm heads, mixtures, segments and past observations of "
        "OpenTau.",
        "opentau_names",
        (
            *(
                f"tests/datasets/test_{name}.py"
                for name in (
                    "delta_action_stats",
                    "norm_key_aggregation",
                    "dataset_mixture",
                    "segment_lerobot_dataset",
                )
            ),
            "tests/policies/test_pi05_mem.py",
        ),
        "TensorAuto/OpenTau",
        "4fe86d1348bfb3ece68e4e6e8f96ce1e6523238f",
        "v0.13.0",
    ),
    Exam(
        "outputs",
        "Doctors and readers of others on datasets that `record`, `edit` and `segment` write.",
        "outputs",
        ("lab/exams/doctors_test.py", "lab/exams/readers_test.py"),
        packages=("lerobot-doctor", "lerobot", "lerobot-lancedb", "daft", "rerun-sdk"),
    ),
    Exam(
        "patients",
        "The patients of lerobot-doctor's tests, one planted fault each. Its tests examine "
        "lerobot-doctor itself; the lines below compare its findings with those of `understudy "
        "check`.",
        "doctor_patients",
        tuple(
            f"tests/test_{name}.py"
            for name in (
                "actions",
                "anomalies",
                "consistency",
                "episodes",
                "metadata",
                "per_episode",
                "statistics",
                "temporal",
                "training",
                "videos",
            )
        ),
        "jashshah999/lerobot-doctor",
        "c5ec8b280921a2e69e6cfdf3ef5319fca2e06008",
        "",
        ("tests",),
        packages=("lerobot-doctor",),
    ),
)


class Failed(Exception):
    """An exam cannot be run. The message is one line."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *(exam.name for exam in EXAMS)])
    parser.add_argument("--pytest", default="", help="further arguments for pytest")
    args = parser.parse_args()
    PLACE.mkdir(exist_ok=True)
    chosen = [exam for exam in EXAMS if not args.names or exam.name in args.names]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(lambda exam: take_exam(exam, shlex.split(args.pytest)), chosen))
    if not args.names:
        write_page()
    return int(not all(passed))


def take_exam(exam: Exam, arguments: list[str]) -> bool:
    """Run an exam and save its row; return whether no test failed, also where a package is
    missing.
    """
    missing = [package for package in exam.packages if version(package) is None]
    if missing:
        report(f"{exam.name}: left out: needs {', '.join(missing)}")
        return True
    (PLACE / f"{exam.name}.json").unlink(missing_ok=True)
    try:
        row = run_exam(exam, arguments)
    except (Failed, subprocess.CalledProcessError) as error:
        report(f"{exam.name}: {error}")
        return False
    (PLACE / f"{exam.name}.json").write_text(json.dumps(row, indent=1) + "\n")
    return not row["failed"]


def run_exam(exam: Exam, arguments: list[str]) -> dict[str, Any]:
    """Run the tests of an exam and return its row of the table.

    Raises:
        Failed: pytest gives no results.
    """
    folder = PLACE / exam.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if exam.repository:
        with SNAPSHOTS:
            extract(exam, folder)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    junit = PLACE / f"{exam.name}.xml"
    junit.unlink(missing_ok=True)
    files = [str(ROOT / file) if (ROOT / file).exists() else file for file in exam.files]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        exam.shim,
        f"--junitxml={junit}",
        "-o",
        "junit_family=xunit2",
    ]
    command += [
        f"--rootdir={folder}",
        "-c",
        str(folder / "pytest.ini"),
        "--timeout=600",
        *arguments,
        *files,
    ]
    report(f"{exam.name}: pytest {' '.join(exam.files)}")
    sources = [str(ROOT / "lab/exams"), str(folder), *map(str, ROOT.glob("packages/*/src"))]
    environment = {
        "PYTHONPATH": os.pathsep.join(sources),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment |= {
        "EXAM_FACTS": str(PLACE / f"{exam.name}.facts.json"),
        "MKL_NUM_THREADS": "1",
        "HOME": str(PLACE),
    }
    if "lerobot-lancedb" in exam.packages:
        environment["LD_LIBRARY_PATH"] = str(link_ffmpeg(folder / "ffmpeg"))
    environment |= {
        name: os.environ[name]
        for name in ("PATH", "LANG", "TMPDIR", "VIRTUAL_ENV")
        if name in os.environ
    }
    Path(environment["EXAM_FACTS"]).unlink(missing_ok=True)
    status = subprocess.run(command, cwd=folder, env=environment).returncode
    if status not in (0, 1) or not junit.exists():
        raise Failed(f"pytest ended with {status}")
    facts = Path(environment["EXAM_FACTS"])
    return {
        "source": f"{exam.repository} {exam.release or exam.commit[:12]}".strip(),
        "about": exam.about,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {package: version(package) for package in exam.packages},
        "facts": json.loads(facts.read_text()) if facts.exists() else {},
        **counts(junit),
    }


def extract(exam: Exam, folder: Path) -> None:
    """Unpack files of a snapshot into a folder."""
    owner_name = exam.repository.replace("/", "+")
    local = os.environ.get("UNDERSTUDY_EXAM_SOURCES")
    repository = Path(local, owner_name) if local else PLACE / "snapshots" / owner_name
    revision = exam.commit
    if not local:
        repository.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
        address = f"https://github.com/{exam.repository}"
        subprocess.run(
            ["git", "fetch", "--quiet", "--depth=1", address, revision], cwd=repository, check=True
        )
        revision = "FETCH_HEAD"
    archive = folder / "snapshot.tar"
    command = ["git", "archive", f"--output={archive}", revision, "--", *(exam.paths or exam.files)]
    subprocess.run(command, cwd=repository, check=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()


def link_ffmpeg(folder: Path) -> Path:
    """Link the libraries of PyAV by the names under which torchcodec looks for an FFmpeg of the
    system.
    """
    folder.mkdir()
    for library in Path(
        str(importlib.metadata.distribution("av").locate_file("av.libs"))
    ).iterdir():
        folder.joinpath(library.name).symlink_to(library)
        if plain := re.fullmatch(r"(\w+)-\w+(\.so\.\d+)\.[\d.]+", library.name):
            folder.joinpath("".join(plain.groups())).symlink_to(library)
    return folder


def counts(junit: Path) -> dict[str, Any]:
    """Tests by outcome and file, the reasons of explained failures and of skips, and the names of
    failures.
    """
    files: dict[str, Counter[str]] = {}
    explained: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    bad = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        skip = case.find("skipped")
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome = "passed"
        if skip is not None:
            outcome = "explained" if skip.get("type") == "pytest.xfail" else "skipped"
            (explained if outcome == "explained" else skipped)[
                " ".join((skip.get("message") or "").split())
            ] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
            bad.append(name)
            report(f"failed: {name}")
        parts = (case.get("classname") or "").split(".")
        module = next(
            (part for part in parts if re.fullmatch(r"test_\w+|\w+_test", part)), "its own"
        )
        files.setdefault(module, Counter())[outcome] += 1
    total = sum(files.values(), Counter())
    return {
        **{outcome: total[outcome] for outcome in ("passed", "explained", "failed", "skipped")},
        "files": {file: dict(count) for file, count in files.items()},
        "explained_by": dict(explained.most_common()),
        "skipped_by": dict(skipped.most_common()),
        "failures": bad,
    }


def write_page() -> None:
    """Write the part of lab/journal/exams.md between the two marks, from all available results."""
    paths = {exam.name: PLACE / f"{exam.name}.json" for exam in EXAMS}
    rows = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    lines = [
        "| exam | files | source | passed | explained | failed | skipped | date |",
        "|" + "---|" * 8,
    ]
    for name, row in rows.items():
        files = ", ".join(f"`{file}`" for file in row["files"])
        figures = " | ".join(
            str(row[outcome]) for outcome in ("passed", "explained", "failed", "skipped")
        )
        source = row["source"] or ", ".join(
            f"{package} {number}" for package, number in row["versions"].items()
        )
        lines.append(f"| {name} | {files} | {source} | {figures} | {row['date']} |")
    for name, row in rows.items():
        lines += ["", f"## {name}", "", row["about"], ""]
        versions = ", ".join(f"{package} {number}" for package, number in row["versions"].items())
        lines += [f"Installed: {versions}.", ""] if versions else []
        lines += [f"* {fact}" for fact in row["facts"].get("lines", [])]
        lines += [
            f"* explained, {count}: {reason}" for reason, count in row["explained_by"].items()
        ]
        lines += [f"* skipped, {count}: {reason}" for reason, count in row["skipped_by"].items()]
        lines += [f"* failed: `{failure}`" for failure in row["failures"]]
        lines = lines[:-1] if lines[-1] == "" else lines
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(
        before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]
    )


def version(package: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def report(line: str) -> None:
    print(f"exams {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
