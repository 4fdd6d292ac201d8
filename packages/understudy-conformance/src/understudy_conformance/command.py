"""`lerobot-conformance SUBJECT MODULE:FACTORY`: examine a factory, print a table, and exit with 1
after a failure.
"""

import argparse
import json
import sys

from understudy_conformance.catalog import REQUIREMENTS, SUBJECTS, select_requirements
from understudy_conformance.examination import Examination
from understudy_conformance.report import format_counts, format_requirements, format_result
from understudy_conformance.requirement import FactoryError


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Returns 0 if nothing failed, 1 after a failure, 2 after an error of the
    set-up.
    """
    parser = argparse.ArgumentParser(prog="lerobot-conformance", description=__doc__)
    parser.add_argument(
        "subject",
        choices=[*SUBJECTS, "list"],
        help="the kind of code; `list` prints all requirements",
    )
    parser.add_argument(
        "factory", nargs="?", metavar="MODULE:FACTORY", help="importable from the current folder"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NUMBER", help="requirements to examine, such as R-READ-03"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="SECONDS", help="for one requirement (120)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.subject == "list":
        print(format_requirements())
        return 0
    if options.factory is None:
        parser.error("give MODULE:FACTORY")
    if unknown := sorted(set(options.only or ()) - set(REQUIREMENTS)):
        parser.error(f"--only names {unknown[0]}; `lerobot-conformance list` prints the numbers")
    results = []
    with Examination(options.factory, options.timeout) as examination:
        for requirement in select_requirements(options.subject):
            if options.only and requirement.number not in options.only:
                continue
            try:
                results.append(examination.examine(requirement))
            except FactoryError as error:
                print(f"lerobot-conformance: {error}", file=sys.stderr)
                return 2
            if not options.json:
                print(format_result(results[-1]), flush=True)
    if options.json:
        facts = {"subject": options.subject, "factory": options.factory}
        print(json.dumps(facts | {"results": [result.to_json() for result in results]}, indent=1))
    else:
        print(format_counts(results))
    return int(any(result.status == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
