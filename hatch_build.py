"""Compiles `src/understudy/data/loops.c` while understudy is installed.

Where there is no C compiler, or it fails, understudy is installed all the same: its loops then run in Python, which
gives the same pictures and is slower with small ones. `CC` names another compiler, as usual.
"""

import os
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
        source = Path(self.root, "src/understudy/data/loops.c")
        made = source.with_name("_loops.so")
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
        build_data["artifacts"].append("src/understudy/data/_loops.so")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"  # it knows nothing of Python's own structures


def _compile(compiler: list[str], source: Path, target: Path) -> str:
    """What went wrong; nothing: it was compiled."""
    try:
        stamp = f"-DLOOPS_SOURCE={zlib.crc32(source.read_bytes())}u"  # loops.py asks for it
        command = [*compiler, *FLAGS, stamp, "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"{compiler[0]}: {getattr(error, 'stderr', None) or error}"
    return ""
