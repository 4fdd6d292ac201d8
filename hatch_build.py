"""Compiles `src/understudy/video/native/loops.c` while understudy is installed.

Where there is no C compiler, or it fails, understudy is installed all the same: its loops then run in Python, which
gives the same pictures and is slower with small ones. `CC` names another compiler, as usual. With `UNDERSTUDY_NATIVE=0`
nothing is compiled and the wheel is for any platform.
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
    """Of wheels, editable ones too: source distributions carry the C file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or not sys.platform.startswith("linux"):  # loops.py asks its kernel for memory
            return
        source = Path(self.root, "src/understudy/video/native/loops.c")
        made = source.with_name("_loops.so")
        if os.environ.get("UNDERSTUDY_NATIVE") == "0":
            return
        fresh = made.with_suffix(f".{os.getpid()}.tmp")  # renamed when it is whole: others may have the old one loaded
        named = os.environ.get("CC")
        compilers = [named] if named else [sysconfig.get_config_var("CC") or "cc", "cc"]  # Python's may be elsewhere
        failed = []
        for one in compilers:
            if not (why := _compile(shlex.split(one), source, fresh)):
                break
            failed.append(why)
        else:
            with suppress(OSError):  # not there, or nothing can be written here
                made.unlink()
            what = "understudy: loops.c is not compiled, small pictures will decode slower"
            self.app.display_warning(f"{what}: {'; '.join(failed)}")
            return
        fresh.replace(made)
        build_data["artifacts"].append("src/understudy/video/native/_loops.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform(made.read_bytes())}"  # it knows nothing of Python's own structures


def _platform(library: bytes) -> str:
    """The platform tag: manylinux where what is compiled needs no other library, and no function of glibc newer than
    2.17; the build machine's own elsewhere."""
    machine = platform.machine()
    needed = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", library)}
    others = set(re.findall(rb"\blib[\w+-]+\.so[.\d]*", library)) - {b"libc.so.6"}
    if (
        machine in ("x86_64", "aarch64")
        and platform.libc_ver()[0] == "glibc"
        and not others
        and max(needed, default=(0,)) <= (2, 17)
    ):
        return f"manylinux_2_17_{machine}.manylinux2014_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _compile(compiler: list[str], source: Path, target: Path) -> str:
    """What went wrong; nothing: it was compiled."""
    try:
        stamp = f"-DLOOPS_SOURCE={zlib.crc32(source.read_bytes())}u"  # loops.py asks for it
        command = [*compiler, *FLAGS, stamp, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{compiler[0]}: {getattr(error, 'stderr', None) or error}"
    return ""
