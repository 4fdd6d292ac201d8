"""Parts of a run's page that other packages add, by entry points of the group
`understudy.pages`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from understudy.report.run.overlay import Run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import (
    EntryPoint,
    EntryPointError,
    find_entry_points,
    missing_distribution,
    summarize,
)
from understudy_kit import Block

GROUP = "understudy.pages"
"""Group of the entry points: functions of a `Run` -> `PagePart`."""
ROLLOUTS = "rollouts"
"""Entry point of the part on rollouts, of the distribution `robot`."""


class PagePart(NamedTuple):
    """A section of a run's page, and its figures at the top."""

    title: str
    blocks: Sequence[Block | None]
    figures: Sequence[tuple[str, str]]
    """Number and its description."""


def page_parts(run: Run) -> list[PagePart]:
    """Return the parts of all packages that are installed, by the names of their entry points.

    A part that fails is replaced by its error: the rest of the page does not depend on it.
    """
    points = find_entry_points(GROUP)
    parts = [_make_part(point, run) for point in points.values()]
    folder = RunDir(run.root).rollouts
    if ROLLOUTS not in points and folder.is_dir():
        line = Block.paragraph(
            f"{folder}: {missing_distribution('the package of rollouts', 'robot')}"
        )
        parts.append(PagePart("Rollouts", [line], ()))
    return parts


def _make_part(point: EntryPoint, run: Run) -> PagePart:
    """Return the part of an entry point, or a part that shows why there is none."""
    try:
        title, blocks, figures = point.load()(run)
        return PagePart(title, list(blocks), list(figures))
    except EntryPointError as error:
        line = str(error)  # it names the entry point
    except Exception as error:  # whatever the code of another package raises
        line = f"{point}: {summarize(error)}"
    return PagePart(point.name, [Block.paragraph(line)], ())
