"""A copy of a dataset with new columns, for commands of other distributions.

It is the entry point `copy` of the group `understudy.writers`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy_base import Record
from understudy_tools.cli.edit import EditConfig, make_plans, output_problems

if TYPE_CHECKING:
    import numpy as np

    from understudy_data import Catalog, Feature, Workers
    from understudy_tools.edit.plan import Piece


class DatasetCopy:
    """All episodes of a dataset in a new folder, as `understudy edit SRC OUT` writes them, with new
    columns.

    Args:
        catalog: the dataset.
        data: its address, for messages.
        out: the folder to write.

    Raises:
        DatasetError: the folder is taken, or the dataset cannot be written in this format.
    """

    def __init__(self, catalog: "Catalog", data: str, out: Path) -> None:
        self._out = out
        self._plan = make_plans(EditConfig(paths=(data, str(out))), [catalog], out)[""]

    @staticmethod
    def problems(paths: Sequence[str], command: str) -> list[str]:
        """List errors of the arguments SRC OUT of a command, one line each.

        Args:
            paths: the arguments.
            command: the words before them, as `edit`.
        """
        return output_problems(paths, command)

    @property
    def features(self) -> "Mapping[str, Feature]":
        """Features of the copy, without new ones."""
        return self._plan.features

    @property
    def work(self) -> int:
        """Frames that `write` counts."""
        return self._plan.work

    def digest(self) -> str:
        """Return a digest of the dataset's files, as meta/edit.json has it."""
        from understudy_tools.edit.write_set import digest_files

        rows = [piece.row for piece in self._plan.pieces]
        return digest_files(self._plan.sources[0], rows, self._plan.cameras)

    def check(self) -> None:
        """Raise DatasetError where the folder has been taken since, or lies in the dataset."""
        from understudy_tools.edit.write_set import check_output

        check_output(self._out, self._plan.sources)

    def write(
        self,
        features: "Mapping[str, Feature]",
        columns: "Mapping[str, Mapping[int, np.ndarray]]",
        origin: Record,
        workers: "Workers",
        count: Callable[[int], None],
    ) -> None:
        """Write the copy; its folder appears complete or not at all.

        Args:
            features: the new columns.
            columns: column -> table row of an episode -> numbers (T, *shape) in the dtype of its
                feature.
            origin: further entries of meta/edit.json, by name.
            workers: processes.
            count: called with numbers of frames as they are done.

        Raises:
            DatasetError: the folder exists, another process writes it, or the dataset cannot be
                read.
        """
        from understudy_tools.edit.write_set import write_outputs

        plan = replace(
            self._plan,
            features={**self._plan.features, **features},
            columns={key: partial(_column, of_row) for key, of_row in columns.items()},
            origin=origin,
        )
        write_outputs({"": plan}, self._out, ["understudy", *sys.argv[1:]], workers, count)


def _column(of_row: "Mapping[int, np.ndarray]", piece: "Piece") -> Any:
    return of_row[piece.row][piece.start : piece.stop]
