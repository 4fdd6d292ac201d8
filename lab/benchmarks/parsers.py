"""Command lines of the benchmarks, without torch."""

import argparse


def make_parser(doc: str | None, whole: bool = False) -> argparse.ArgumentParser:
    """Make a parser with `--json`. Its description is the first paragraph of the docstring, or the
    `whole` docstring.
    """
    text, shape = (
        (doc or "", argparse.RawDescriptionHelpFormatter)
        if whole
        else ((doc or "").split("\n\n")[0], None)
    )
    parser = argparse.ArgumentParser(
        description=text, formatter_class=shape or argparse.HelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
