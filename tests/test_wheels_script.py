"""The check of a release's files, by `make wheels`."""

import io
import runpy
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "scripts/check_wheels.py"))
LOOPS = SCRIPT["LOOPS"]
MACHINES = SCRIPT["MACHINES"]
PURE = SCRIPT["PURE"]
TAGS = {machine: tag for tag, machine in SCRIPT["TAGS"].items()}
FILES = ("understudy_data/__init__.py", "understudy_data/video/native/loops.c")


def write_wheel(dist: Path, tag: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    path = dist / f"understudy_data-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "understudy_data-1.0.dist-info/METADATA", f"Name: understudy\nVersion: {version}\n"
        )
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def library(machine: str) -> bytes:
    return b"\x7fELF\x02\x01" + bytes(12) + MACHINES[machine].to_bytes(2, "little") + bytes(40)


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    common = dict.fromkeys(FILES, b"")
    write_wheel(tmp_path, PURE, common)
    for machine, tag in TAGS.items():
        write_wheel(tmp_path, tag, common | {LOOPS: library(machine)})
    with tarfile.open(tmp_path / "understudy_data-1.0.tar.gz", "w:gz") as archive:
        for name in FILES:
            archive.addfile(tarfile.TarInfo(f"understudy_data-1.0/src/{name}"), io.BytesIO())
    for name in SCRIPT["OTHERS"]:
        for end in (".tar.gz", "-py3-none-any.whl"):
            (tmp_path / f"{name}-1.0{end}").touch()
    return tmp_path


def test_release_without_faults(dist: Path) -> None:
    assert SCRIPT["problems"](dist) == []


FAULTS: dict[str, Callable[[Path], object]] = {
    "a machine without a wheel": lambda dist: (
        dist / f"understudy_data-1.0-{TAGS['aarch64']}.whl"
    ).unlink(),
    "no wheel for all": lambda dist: (dist / f"understudy_data-1.0-{PURE}.whl").unlink(),
    "another tag": lambda dist: write_wheel(
        dist, "py3-none-linux_x86_64", dict.fromkeys(FILES, b"")
    ),
    "the code of another machine": lambda dist: write_wheel(
        dist, TAGS["aarch64"], dict.fromkeys(FILES, b"") | {LOOPS: library("x86_64")}
    ),
    "no code": lambda dist: write_wheel(dist, TAGS["aarch64"], dict.fromkeys(FILES, b"")),
    "code in the wheel for all": lambda dist: write_wheel(
        dist, PURE, dict.fromkeys(FILES, b"") | {LOOPS: library("x86_64")}
    ),
    "a file that the others lack": lambda dist: write_wheel(
        dist,
        TAGS["x86_64"],
        dict.fromkeys([*FILES, "understudy_data/new.py"], b"") | {LOOPS: library("x86_64")},
    ),
    "another version": lambda dist: write_wheel(
        dist, PURE, dict.fromkeys(FILES, b""), version="2.0"
    ),
    "no kit for loaders": lambda dist: (
        dist / "understudy_conformance-1.0-py3-none-any.whl"
    ).unlink(),
    "another version of the kit": lambda dist: (dist / "understudy_conformance-2.0.tar.gz").touch(),
    "no source distribution": lambda dist: (dist / "understudy_data-1.0.tar.gz").unlink(),
    "a file that the sources lack": lambda dist: [
        write_wheel(dist, tag, dict.fromkeys([*FILES, "understudy_data/new.py"], b"") | code)
        for tag, code in [
            (PURE, {}),
            *((tag, {LOOPS: library(machine)}) for machine, tag in TAGS.items()),
        ]
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_release_with_a_fault(dist: Path, fault: str) -> None:
    FAULTS[fault](dist)
    assert len(SCRIPT["problems"](dist)) == 1
