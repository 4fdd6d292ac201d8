"""The normalization of a run: computed from its training episodes, or given and confronted with
their rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.train import TrainConfig
from understudy.policies.capabilities.start import (
    ChecksStart,
    chosen_normalization,
    figures_of_weights,
)
from understudy.policies.registry import policy_type
from understudy.policies.settings import check_start
from understudy.train.data.dimension_modes import check_identity, dimension_modes, rest_mode
from understudy.train.data.given_figures import (
    OF_HEAD,
    OF_START,
    Origin,
    Samples,
    limited,
    of_file,
    of_policy,
    of_weights,
    settle,
    shared_heads,
    with_ranges,
)
from understudy.train.data.run_data import RunData, for_each_source, head_members
from understudy.train.data.source_faults import join_errors
from understudy_base import ACTION, DataAccessError, DatasetError, Record
from understudy_data import BadEpisodes, DimensionMode, NormHeads, Statistics, Workers

HeadStatistics = dict[str, dict[str, Statistics]]
"""Norm head -> key -> statistics."""


def compute_normalization(
    data: RunData,
    mode: DimensionMode,
    cache: Path | None = None,
    workers: Workers | None = None,
    modes: Sequence[Mapping[str, Sequence[DimensionMode]]] | None = None,
    samples: Samples | None = None,
    absolute: HeadStatistics | None = None,
) -> dict[str, Any]:
    """Compute offset and spread of the policy's inputs and outputs, per head, from the training
    episodes alone.

    Args:
        data: the data of the run.
        mode: the setting `data.normalize`.
        cache: folder of earlier results; None keeps nothing.
        workers: processes that read the rows; None reads them in this one.
        modes: by source, normalization of each dimension by key; None: `mode` for all.
        samples: rows of the sources with external statistics; None reads some.
        absolute: see `compute_statistics`.

    Raises:
        DatasetError: a value, validation episodes included, is not finite (names episode and
            dimension), or sources of one head differ in width.
    """
    wrong: dict[str, DataAccessError] = {}
    samples = samples or Samples(data, 0, sum(bool(source.stats) for source in data.sources))

    members = []
    for number, member in enumerate(head_members(data)):
        modes_of_source = modes[number] if modes else None
        members.append(replace(member, modes=modes_of_source))

    def external(number: int) -> Mapping[str, Statistics] | None:
        path = data.sources[number].stats
        member = members[number]
        if not path:
            return None
        recorded = member.read_statistics(path, mode)
        sample = partial(samples.of, number)
        return with_ranges(recorded, sample, member.modes_of_keys(mode), path)

    recorded = for_each_source(data.names, external, wrong)
    if wrong:
        raise join_errors(wrong, len(data.names))
    with_figures = []
    for member, statistics in zip(members, recorded, strict=True):
        with_figures.append(replace(member, recorded=statistics))
    chunk = data.training[0].reach_of(ACTION)[1] + 1
    validation = [other for other in data.validation if other is not None]
    try:
        heads = NormHeads(with_figures, chunk, cache, validation, workers)
        return heads.normalization(mode, absolute)
    except DatasetError as error:
        raise _name_all(data, error) from error


_MOST_NAMED = 20
"""Reasons that one message lists."""


def _name_all(data: RunData, error: DatasetError) -> DatasetError:
    """Return an error with all episodes whose rows contradict the metadata; `error` where there are
    less than two.
    """
    lines: list[str] = []
    flags: list[str] = []
    for source in data.sources:
        part = source.training
        other = source.validation
        chosen = part.episodes if other is None else np.union1d(part.episodes, other.episodes)
        bad = BadEpisodes.contradicting(part.catalog, chosen)
        lines += bad.reasons
        if bad.ids:
            flags.append(f"{source.name}: " * (len(data.sources) > 1) + " ".join(map(str, bad.ids)))
    if len(lines) < 2:
        return error
    more = f"; and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    problem = (
        f"{len(lines)} episodes or files contradict the metadata: "
        f"{'; '.join(lines[:_MOST_NAMED])}{more}"
    )
    fix = f"{error.fix}: " if "--data.pairing" in error.fix else ""
    fix += (
        f"leave them out: --data.exclude-episodes {'; '.join(flags)}, or --data.on-bad-episode skip"
    )
    where = data.training[0].catalog.root if len(data.names) == 1 else None
    return DatasetError(problem, where=where, fix=fix)


def choose_normalization(
    config: TrainConfig,
    data: RunData,
    cache: Path | None = None,
    workers: Workers | None = None,
    absolute: HeadStatistics | None = None,
) -> Record:
    """Return the normalization of a new run: that of the weights it starts from, or of its training
    episodes.

    The statistics of the data are computed in either case, because they find values that no run can
    use. Figures that are not those of all rows are confronted with some of them
    (`given_figures.py`). `absolute`: see `compute_statistics`.

    Raises:
        ConfigError: the weights have none, or one of another robot, or settings that contradict
            those of the run.
        DatasetError: see `compute_normalization`; or figures from outside are not those of this
            data.
    """
    checks_start = isinstance(policy_type(config.policy.type).load(), ChecksStart)
    if checks_start and not config.init_from:
        check_start(data.policy_config(config))
    default = config.policy.NORMALIZE
    modes = dimension_modes(config.data, data, default)
    weights = "" if config.init_from else figures_of_weights(config.policy)
    origins = limited(_origins(data, weights), config.seed)
    samples = Samples(data, config.seed, max(1, len(origins)))
    named = modes if isinstance(config.data.normalize, Mapping) else None
    rest: Any = rest_mode(config.data.normalize, default)
    computed = compute_normalization(data, rest, cache, workers, named, samples, absolute)
    chosen = chosen_normalization(config.policy, computed)
    if config.init_from:
        return chosen  # for its heads and dimensions; the run takes that of the initial policy
    if weights and named is not None:
        check_identity(chosen, data, modes, f"policy.weights {weights}")
    return settle(chosen, samples, origins, modes)


def confront_policy(config: TrainConfig, data: RunData, normalization: Record) -> Record:
    """Return the normalization of an initial policy as a run trains with it.

    Raises:
        ConfigError: the settings contradict it.
        DatasetError: it is not that of this data.
    """
    modes = dimension_modes(config.data, data, config.policy.NORMALIZE)
    if isinstance(config.data.normalize, Mapping):
        check_identity(normalization, data, modes, f"init_from {config.init_from}")
    origins = limited(
        dict.fromkeys(range(len(data.names)), of_policy(config.init_from)), config.seed
    )
    return settle(normalization, Samples(data, config.seed, len(origins)), origins, modes)


def confront_update(config: TrainConfig, data: RunData, normalization: Record, first: int) -> None:
    """Confront the figures of a run with the rows of the sources from number `first` on, which an
    update adds.

    Raises:
        DatasetError: they are not those of the new rows.
    """
    origins = limited(dict.fromkeys(range(first, len(data.names)), OF_START), config.seed)
    modes = dimension_modes(config.data, data, config.policy.NORMALIZE)
    settle(normalization, Samples(data, config.seed, max(1, len(origins))), origins, modes)


def _origins(data: RunData, weights: str) -> dict[int, Origin]:
    """Origin of the figures of each source that are not those of its own rows alone."""
    if weights:
        return dict.fromkeys(range(len(data.names)), of_weights(weights))
    origins = dict.fromkeys(shared_heads(data), OF_HEAD)
    given = {source.head: source.stats for source in data.sources if source.stats}
    for source in data.sources:
        if source.head in given:
            origins[source.number] = of_file(source.stats or given[source.head])
    return dict(sorted(origins.items()))
