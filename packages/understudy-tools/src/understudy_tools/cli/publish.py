"""`understudy publish WRITER [WRITER ...] OUT`: the recordings of several writers as one growing
dataset.
"""

from dataclasses import dataclass
from pathlib import Path

from understudy_kit import Positional, Processes


@dataclass(frozen=True)
class PublishConfig:
    """Append the new episodes of one or more writers to a dataset that others read meanwhile.

    A writer is a dataset in a folder of its own, such as the recording of one robot; the name of
    the folder identifies it. The new version of OUT appears in one step. Earlier episodes keep
    their numbers and files (docs/datasets.md).
    """

    paths: Positional[tuple[str, ...]] = ()
    """Datasets of the writers, then the dataset to publish: new, or of earlier publications."""
    workers: Processes = 1
    """Processes on this machine."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        if len(self.paths) < 2:
            return ["paths: required: understudy publish WRITER [WRITER ...] OUT"]
        return []


def publish(config: PublishConfig) -> None:
    """Publish, and print the new episodes."""
    from understudy_data import Workers
    from understudy_tools.edit.publish import publish

    for name, count in publish(
        config.paths[:-1], Path(config.paths[-1]), Workers(config.workers)
    ).items():
        print(f"{name}: {count} new episodes")
