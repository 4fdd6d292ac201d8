"""A process that examines one factory: `python -m understudy_conformance.worker MODULE:FACTORY`.

It reads numbers of requirements from stdin, and answers each with a line of JSON. Its first line
says whether the factory could be imported. A package that is missing is an "error", too. Other
output goes to stderr.
"""

import importlib
import json
import os
import sys

from understudy_conformance.catalog import REQUIREMENTS, Factory, examine
from understudy_conformance.requirement import FactoryError, describe_error


def import_factory(path: str) -> Factory:
    """Import MODULE:FACTORY.

    Raises:
        ValueError: the path has another form, or names no function.
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"the factory is {path!r}; give MODULE:FACTORY")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ValueError(f"{module} has no function {name!r}")
    return Factory(function, path)


def explain_error(error: Exception) -> str:
    """Return an error of the set-up in one line."""
    try:
        return describe_error(error)
    except FactoryError as missing:
        return str(missing)


def main() -> None:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the factory's code
    try:
        factory = import_factory(sys.argv[1])
        print(json.dumps({}), file=answers, flush=True)
        for line in sys.stdin:
            result = examine(REQUIREMENTS[line.strip()], factory)
            print(json.dumps(result.to_json()), file=answers, flush=True)
    except Exception as error:  # of foreign code
        print(json.dumps({"error": explain_error(error)}), file=answers, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # threads of a loader may never end
