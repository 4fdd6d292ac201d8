"""Check the files of a release: `python scripts/check_wheels.py dist`.

One source distribution and three wheels of one version: two with compiled loops for the machine of
their tag, and one without. All have the same Python files. Next to them, sources and a wheel of
each other distribution, of that version.
"""

import re
import sys
import tarfile
import zipfile
from pathlib import Path

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of an ELF file
LOOPS = "understudy_data/video/native/_loops.so"
TAGS = {
    f"py3-none-manylinux2014_{machine}.manylinux_2_17_{machine}": machine for machine in MACHINES
}
PURE = "py3-none-any"
OTHERS = (
    "understudy",
    *(f"understudy_{name}" for name in ("base", "kit", "client", "tools", "robot", "zoo")),
    "understudy_conformance",
    "understudy_lerobot_service",
)


def problems(dist: Path) -> list[str]:
    """Return one line per fault of the files in a folder; none if they can be uploaded."""
    found = []
    wheels = {}
    for path in sorted(dist.glob("understudy_data-*.whl")):
        name, version, tag = path.stem.split("-", 2)
        wheels[tag] = path
        if (name, version) != ("understudy_data", stated_version(path)):
            found.append(f"{path.name}: its METADATA has the version {stated_version(path)}")
    for tag in sorted({*TAGS, PURE} ^ wheels.keys()):
        found.append(
            f"{tag}: "
            f"{'no such tag is released' if tag in wheels else 'there is no wheel with this tag'}"
        )
    files = {tag: members(path) for tag, path in wheels.items()}
    for tag, names in sorted(files.items()):
        found += [f"{tag}: {fault}" for fault in compiled_faults(wheels[tag], names, TAGS.get(tag))]
        if names - {LOOPS} != files.get(PURE, names) - {LOOPS}:
            found.append(
                f"{tag}: other files than {PURE}: {sorted((names ^ files[PURE]) - {LOOPS})[:5]}"
            )
    sources = sorted(dist.glob("understudy_data-*.tar.gz"))
    versions = {path.name.split("-")[1] for path in wheels.values()}
    ends = (".tar.gz", "-py3-none-any.whl")
    others = {f"{name}-{version}{end}" for name in OTHERS for version in versions for end in ends}
    built = {path.name for name in OTHERS for path in dist.glob(f"{name}-*")}
    for file in sorted(others ^ built):
        found.append(f"{file}: {'missing' if file in others else 'another version'}")
    if len(sources) != 1:
        return [*found, f"{len(sources)} source distributions, not one"]
    with tarfile.open(sources[0]) as archive:
        inside = {
            name.partition("/src/")[2]
            for name in archive.getnames()
            if "/src/understudy_data/" in name
        }
    missing = files.get(PURE, set()) - inside - {LOOPS}
    return found + [f"{sources[0].name}: no {name}" for name in sorted(missing)]


def compiled_faults(wheel: Path, names: set[str], machine: str | None) -> list[str]:
    """Return faults of the compiled file of a wheel: for `machine`, or of none at all."""
    libraries = {name for name in names if name.endswith((".so", ".dylib", ".pyd"))}
    if libraries != ({LOOPS} if machine else set()):
        return [f"compiled files: {sorted(libraries)}"]
    if machine is None:
        return []
    head = zipfile.ZipFile(wheel).read(LOOPS)[:20]
    if head[:6] != b"\x7fELF\x02\x01" or int.from_bytes(head[18:20], "little") != MACHINES[machine]:
        return [f"{LOOPS} is not for {machine}"]
    return []


def members(wheel: Path) -> set[str]:
    """Return the files of the package in a wheel."""
    return {
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("understudy_data/")
    }


def stated_version(wheel: Path) -> str:
    """Return the version in the metadata of a wheel."""
    archive = zipfile.ZipFile(wheel)
    (place,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    stated = re.search(r"^Version: (\S+)$", archive.read(place).decode(), flags=re.MULTILINE)
    return stated[1] if stated else "(none)"


if __name__ == "__main__":
    faults = problems(Path(sys.argv[1]))
    print("\n".join(faults) or f"{sys.argv[1]}: the files of a release, as they should be")
    sys.exit(min(1, len(faults)))
