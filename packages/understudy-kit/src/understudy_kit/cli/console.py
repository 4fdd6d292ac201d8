"""Texts of others on any console, file or pipe: tasks, joints and names of files may hold letters
that it lacks.
"""

import codecs
import os
import sys

ESCAPE = "understudy.escape"
"""Name of the handler that writes a letter as JSON does: \\u5939, and two of them beyond the first
65,536.
"""


def escape(error: UnicodeError) -> tuple[str, int]:
    """Replace the letters that an encoding lacks by their escapes in JSON, so that JSON stays
    JSON.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2)]
    return "".join(f"\\u{code:04x}" for code in codes), error.end


def write_any_text() -> None:
    """Let standard output and errors escape letters that their encoding lacks, instead of ending
    the command.
    """
    codecs.register_error(ESCAPE, escape)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ESCAPE)


def start_again_as_utf8() -> None:
    """Start this program again with Python's UTF-8 mode where the locale makes names of files
    ASCII.

    Names of arguments and folders would hold surrogates there, which no file of ours can store.
    """
    ascii_names = codecs.lookup(sys.getfilesystemencoding()).name == "ascii"
    if not ascii_names or os.environ.get("PYTHONUTF8") == "1" or not sys.executable:
        return
    os.environ["PYTHONUTF8"] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
