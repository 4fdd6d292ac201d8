"""Folders of other tools: the capabilities `ReadsFolders` and `RenamesWeights`.

Folders are written in the format of another tool by the entry points `TYPE.TOOL` of the group
`understudy.folders`.
"""

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from understudy_base import Record


@runtime_checkable
class ReadsFolders(Protocol):
    """Class of a policy that is read from folders of another tool, too."""

    @staticmethod
    def read_folder(
        folder: Path, stored: Record, normalization: Record | None, shapes: Any, asset: str = ""
    ) -> tuple[Record, Record] | None:
        """Return config and normalization as our own folders have them, completed from the other
        files of the folder.

        Args:
            folder: the folder.
            stored: its config.json; empty where there is none.
            normalization: content of normalisation.json; None: take the folder's.
            shapes: shapes of its tensors, by key.
            asset: which normalization, where the folder has several.

        Returns:
            None: the folder is not one of the tool.

        Raises:
            ValueError: a file contradicts another, or lacks something.
            ConfigError: the normalization is missing or damaged.
        """


@runtime_checkable
class RenamesWeights(Protocol):
    """Settings of a policy whose stored parameters have the names of another tool."""

    def stored_name(self, name: str) -> str:
        """Return the name of a parameter in the model.safetensors of a saved policy; `load_weights`
        must accept it.
        """


def stored_name(settings: object, name: str) -> str:
    """Return the name of a parameter in the model.safetensors of a saved policy."""
    return settings.stored_name(name) if isinstance(settings, RenamesWeights) else name
