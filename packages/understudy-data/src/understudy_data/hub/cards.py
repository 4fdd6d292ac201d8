"""README.md of a folder as a program wrote it: its last line is a comment with the digest of the
text above it.
"""

import hashlib
from typing import ClassVar

FILE = "README.md"
_MARK = "<!-- model card of understudy, sha256 of the text above: "


def sign(text: str) -> str:
    """Add the last line to a text."""
    return f"{text}{_MARK}{hashlib.sha256(text.encode()).hexdigest()} -->\n"


def is_unchanged(content: bytes) -> bool:
    """Return whether a README.md is a result of `sign`: no user has edited it."""
    text = content.decode("utf-8", "replace").rpartition(_MARK)[0]
    return content == sign(text).encode()


class ModelCard:
    """README.md of a policy folder."""

    FILE: ClassVar[str] = FILE

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def signed(self) -> str:
        """The text with the last line (`sign`)."""
        return sign(self.text)

    @staticmethod
    def is_unchanged(content: bytes) -> bool:
        """Return whether a README.md is `signed`: no user has edited it."""
        return is_unchanged(content)
