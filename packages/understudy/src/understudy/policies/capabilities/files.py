"""Files that a policy needs: the capability `NeedsFiles`."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

Settings = TypeVar("Settings")
Files = Mapping[str, tuple[str, ...]]
"""Field that names a file or folder, "" for none -> the files needed of a folder."""


@runtime_checkable
class NeedsFiles(Protocol):
    """Settings of a policy that needs files, such as a tokenizer."""

    FILES: ClassVar[Files]
    """Fields that name the files. Exported folders have copies (`policies/policy_folder.py`)."""


def files_of(settings: object) -> Files:
    """Return the `FILES` of settings, of a config, or of their class; none without the
    capability.
    """
    return settings.FILES if isinstance(settings, NeedsFiles) else {}


def with_absolute_files(settings: Settings) -> Settings:
    """Return the settings with absolute paths of their files."""
    paths = {}
    for name in files_of(settings):
        if path := getattr(settings, name):
            paths[name] = os.path.abspath(path)
    own: Any = settings
    located: Settings = replace(own, **paths)
    return located
