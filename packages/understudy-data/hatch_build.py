"""Compile `src/understudy_data/video/native/loops.c` while this package is installed.

Without a working C compiler the installation succeeds anyway: the loops then run in Python, with
the same images and slower for small ones. The variable `CC` names another compiler, also one for
another machine: the tag of the wheel follows the compiled file. With `UNDERSTUDY_NATIVE=0`, and on
other systems than Linux, nothing is compiled and the wheel is for any platform.
"""

import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


class Loops(BuildHookInterface):
    """Build hook for wheels, also editable ones. Source distributions contain the C file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # loops.py reads /proc
        if self.target_name != "wheel" or not sys.platform.startswith("linux"):
            return
        source = Path(self.root, "src/understudy_data/video/native/loops.c")
        made = source.with_name("_loops.so")
        if os.environ.get("UNDERSTUDY_NATIVE") == "0":
            return
        # renamed when complete: the old file may be in use
        fresh = made.with_suffix(f".{os.getpid()}.tmp")
        named = os.environ.get("CC")
        # Python's may not exist
        compilers = [named] if named else [sysconfig.get_config_var("CC") or "cc", "cc"]
        failed = []
        for one in compilers:
            if not (error := _compile(shlex.split(one), source, fresh)):
                break
            failed.append(error)
        else:
            with suppress(OSError):  # it does not exist, or the folder is read-only
                made.unlink()
            what = "understudy: loops.c is not compiled, small images will decode slower"
            self.app.display_warning(f"{what}: {'; '.join(failed)}")
            return
        fresh.replace(made)
        build_data["artifacts"].append("src/understudy_data/video/native/_loops.so")
        build_data["pure_python"] = False
        # it is independent of the version of Python
        build_data["tag"] = f"py3-none-{_platform(made.read_bytes())}"


_MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file


def _platform(library: bytes) -> str:
    """Platform tag of a compiled file, whose header names its machine.

    It is manylinux where the file needs no library but glibc, and no function of glibc newer than
    2.17. Otherwise it is the tag of the build machine, or `linux_` and the other machine.
    """
    # 64 bits, little-endian
    number = int.from_bytes(library[18:20], "little") if library[4:6] == b"\x02\x01" else 0
    machine = _MACHINES.get(number, platform.machine())
    needed = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)}
    others = set(re.findall(rb"\blib[\w+-]+\.[\w.-]*so[.\d]*", library)) - {b"libc.so.6"}
    old = not others and max(needed, default=(0,)) <= (2, 17)
    # musl's pip refuses manylinux
    if old and number in _MACHINES and platform.libc_ver()[0] == "glibc":
        return f"manylinux2014_{machine}.manylinux_2_17_{machine}"  # sorted, as installers expect
    if machine != platform.machine():
        return f"linux_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _compile(compiler: list[str], source: Path, target: Path) -> str:
    """Compile `source` to `target`; returns the error, or nothing."""
    try:
        stamp = f"-DLOOPS_SOURCE={zlib.crc32(source.read_bytes())}u"  # loops.py checks it
        command = [*compiler, *FLAGS, stamp, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{compiler[0]}: {getattr(error, 'stderr', None) or error}"
    return (
        "" if target.read_bytes()[:4] == b"\x7fELF" else f"{compiler[0]}: its code is not for Linux"
    )
