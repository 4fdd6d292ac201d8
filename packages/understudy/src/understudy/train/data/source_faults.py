"""Errors of the sources of a run, joined into one that lists all of them, and the settings that
leave them out.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from understudy.train.data.sources import BadEpisodesError, Source
from understudy_base import ACTION, STATE, DataAccessError, DatasetError, SourceError
from understudy_kit import SourceConfig, plain

MOST_LISTED = 200
"""Sources up to which the settings without the wrong ones are printed whole."""


def join_errors(
    wrong: Mapping[str, DataAccessError],
    count: int,
    sources: Mapping[str, SourceConfig] | None = None,
) -> DataAccessError:
    """Join the errors of sources, of `count` in all, into one: a SourceError where none of them is
    of a dataset.

    Args:
        wrong: the error of each wrong source, by name.
        count: number of sources.
        sources: settings of all sources by name, of a run that may leave some out: the message then
            ends with a `data.sources` to paste, without the wrong sources or without their bad
            episodes.
    """
    if count == 1:
        return next(iter(wrong.values()))
    lines = [f"source {label}: {error}" for label, error in wrong.items()]
    kind: type[DataAccessError] = SourceError
    if any(isinstance(error, DatasetError) for error in wrong.values()):
        kind = DatasetError
    if len(lines) == 1:
        return kind(lines[0])
    lines += _without(wrong, sources or {})
    head = f"{len(wrong)} of {count} sources cannot be used"
    return kind("\n  ".join([head, *lines]))


def _without(
    wrong: Mapping[str, DataAccessError], sources: Mapping[str, SourceConfig]
) -> list[str]:
    """Lines with the settings of the sources that can be used; none where no source can."""
    kept: list[SourceConfig] = []
    changed = 0
    for name, source in sources.items():
        error = wrong.get(name)
        if error is None:
            kept.append(source)
        elif isinstance(error, BadEpisodesError) and error.settings:
            kept.append(replace(source, **error.settings))
            changed += 1
    if not kept:
        return []
    if len(sources) > MOST_LISTED:
        numbers = [str(number) for number, name in enumerate(sources) if name in wrong]
        return [f"numbers of these sources in data.sources, counted from 0: {' '.join(numbers)}"]
    left = len(sources) - len(kept)
    words = [f"without {left} of them"] * (left > 0) + [
        f"without the bad episodes of {changed}"
    ] * (changed > 0)
    entries = [f"  - {json.dumps(_given(source), ensure_ascii=False)}" for source in kept]
    return [
        f"to train {' and '.join(words)}, in the settings file:",
        "data:",
        "  sources:",
        *entries,
    ]


def _given(source: SourceConfig) -> dict[str, object]:
    """Settings of a source that are no defaults."""
    defaults = plain(SourceConfig())
    return {name: value for name, value in plain(source).items() if value != defaults[name]}


def check_heads(
    names: Sequence[str], sources: Sequence[Source | None], wrong: dict[str, DataAccessError]
) -> None:
    """Add an error for each source whose width differs from that of an earlier source of its norm
    head.

    One such source alone is left to `NormHeads.normalization`, which says the same.
    """
    first: dict[str, tuple[str, Source]] = {}
    odd: dict[str, DataAccessError] = {}
    for name, source in zip(names, sources):
        if source is None or name in wrong:
            continue
        head = source.head(name)
        of, other = first.setdefault(head, (name, source))
        for key in (ACTION, STATE):
            widths = [_width(each, key) for each in (other, source)]
            if widths[0] != widths[1]:
                have = f"{of!r} has {widths[0] or 'no'} and {name!r} has {widths[1] or 'no'}"
                problem = f"head {head!r}: {have} dimensions of {key!r}"
                fix = (
                    "give them different robot types or control modes, or map their keys (names) "
                    "to the same thing"
                )
                odd.setdefault(name, DatasetError(problem, where=source.catalog.root, fix=fix))
    if len(odd) > 1 or wrong:
        wrong |= odd


def _width(source: Source, key: str) -> int:
    return int(np.prod(source.catalog.features[key].value_shape)) if key in source.keys else 0
