"""Commands of Python for processes that this one starts."""

import os
import sys


def module_command(module: str) -> list[str]:
    """Return the command of `python -m MODULE`, which imports from the same folders as this process.

    By itself `-m` puts the working directory first on `sys.path`. There, in the folder of a stranger, a file of the
    name of any module would be imported.
    """
    try:
        is_on_path = os.getcwd() in {os.path.abspath(entry) for entry in sys.path}
    except OSError:  # the folder was removed
        is_on_path = False
    safe = [] if is_on_path else ["-P"]
    return [sys.executable, *safe, "-m", module]
