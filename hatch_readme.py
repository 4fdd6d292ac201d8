"""Metadata hook: the README with absolute links to the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        home = metadata["urls"]["Homepage"]
        text = Path(self.root, "README.md").read_text()
        text = re.sub(r"!\[([^]]*)\]\((?!https?:)([^)#]+)\)", rf"![\1]({home}/raw/main/\2)", text)
        text = re.sub(
            r"(?<!!)\[([^]]*)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({home}/blob/main/\2)", text
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
