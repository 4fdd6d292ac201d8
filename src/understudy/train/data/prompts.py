"""Prompts of a run's training data: their metadata, and the longest ones."""

from collections.abc import Iterable, Sequence
from heapq import nlargest

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.instructions import split_task
from understudy.prompt_metadata import add_metadata

_MOST = 1000  # longest texts by characters, among which the longest by tokens is sought


def check_prompt_metadata(names: Iterable[str], training: Sequence[EpisodeDataset]) -> None:
    """Raise DatasetError for metadata of the prompts that no source has."""
    known = {name for part in training for name in part.prompts.names or ()}
    if lost := [name for name in names if name not in known]:
        there = sorted({name for part in training for name in part.catalog.episode_metadata()})
        where = training[0].catalog.root if len(training) == 1 else "the sources"
        fix = f"metadata of their episodes: {', '.join(there) or 'none; `edit --metadata` adds some'}"
        raise DatasetError(f"data.prompt_metadata names {lost[0]!r}, which no episode has", where=where, fix=fix)


def prompt_fields(training: Sequence[EpisodeDataset]) -> list[str]:
    """Return the distinct metadata of prompts as they are written there, sorted."""
    texts = {text for part in training for text in part.prompts.texts if text}
    return sorted(add_metadata([""] * len(texts), list(texts)))


def instructions(training: Sequence[EpisodeDataset], separator: str) -> set[str]:
    """Return the distinct instructions of training; `separator` is that of `augment.task_separator`."""
    return {task for part in training for text in part.catalog.tasks for task in split_task(text, separator)}


def longest_prompts(training: Sequence[EpisodeDataset], separator: str = "") -> list[str]:
    """Return the longest instructions with the longest metadata, all of it; by characters, the longest first."""
    tasks = nlargest(_MOST, instructions(training, separator), len)
    fields = nlargest(_MOST, {text for part in training for text in part.prompts.texts}, len)
    pairs = [(task, text) for task in tasks for text in fields[: max(1, _MOST // len(tasks))]]
    return add_metadata([task for task, _ in pairs], [text for _, text in pairs])
