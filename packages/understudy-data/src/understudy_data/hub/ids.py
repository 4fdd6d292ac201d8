"""Ids of repositories on the hub: `OWNER/NAME`, `OWNER/NAME@REVISION`, `hf://OWNER/NAME`,
`hf://datasets/OWNER/NAME`.
"""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

SCHEME = "hf://"
_DATASETS = "datasets/"
_ID = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
# A name of such a file has a typing error, which must not wait for the network.
_FILE_SUFFIXES = (".model", ".json", ".safetensors")


@dataclass(frozen=True)
class HubId:
    """A repository on the hub.

    Attributes:
        name: OWNER/NAME.
        revision: branch, tag or commit; None: the main branch.
        kind: "model" for policies and runs, or "dataset".
    """

    name: str
    revision: str | None = None
    kind: Literal["model", "dataset"] = "model"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read an address `hf://...`; None: the text is none, or has another form."""
        if not text.startswith(SCHEME):
            return None
        identifier = text.removeprefix(SCHEME)
        kind: Literal["model", "dataset"] = "model"
        if identifier.startswith(_DATASETS):
            kind = "dataset"
        match = _ID.fullmatch(identifier.removeprefix(_DATASETS).rstrip("/"))
        return cls(match["name"], match["revision"], kind) if match else None

    @classmethod
    def of_model(cls, text: str) -> Self | None:
        """Return the model repository that a text names where a local folder is expected; None for
        a local path.

        A path that exists, is in a folder that exists, or nearly equals one that exists is local.
        """
        match = _ID.fullmatch(text.removeprefix(SCHEME))
        if match is None:
            return None
        if not text.startswith(SCHEME):
            exists = os.path.lexists(text) or os.path.isdir(text.partition("/")[0])
            if exists or cls.near_path(text) or text.endswith(_FILE_SUFFIXES):
                return None
        return cls(match["name"], match["revision"])

    @staticmethod
    def near_path(text: str) -> str:
        """Return the existing local path that a mistyped one means, such as data/table for
        dat/tabel; "": none is near.
        """
        place = Path()
        for part in Path(text).parts:
            if not (place / part).exists():
                try:
                    near = difflib.get_close_matches(part, os.listdir(place), n=1, cutoff=0.75)
                except OSError:
                    return ""
                if not near:
                    return ""
                part = near[0]
            place /= part
        return str(place)

    def __str__(self) -> str:
        inside = _DATASETS if self.kind == "dataset" else ""
        at_revision = f"@{self.revision}" if self.revision else ""
        return f"{SCHEME}{inside}{self.name}{at_revision}"
