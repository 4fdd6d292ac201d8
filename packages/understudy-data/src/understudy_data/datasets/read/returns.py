"""Returns of frames, the targets of a value function, from the outcomes or the rewards of episodes.

The return of frame t of an episode of T frames is G_t = sum over k = t to T - 1 of discount^(k - t)
r_k, with the reward r_k of the step that follows frame k:

    success   r is 1 behind the last frame of a success, otherwise 0
    time      r is -1 / fps; behind the last frame it is 0 for a success, and -horizon for a
              failure. Returns below -horizon are -horizon. So they are minus the seconds to success
              (Physical Intelligence 2025, "pi*0.6: a VLA that learns from experience", without its
              division by the longest episode)
    KEY       r is the value of a column, one number per frame

An episode that was cut before its end (a time limit, a stopped recording) has no outcome:
`truncated` is true and `success` is not, or `success` is missing. Its returns are not known. Nor
are those of an episode that `edit` or `segment` cut from a longer one before its last frame
(`END_IS_CUT`), whatever its outcome. Returns belong to whole episodes: selected frames and windows
do not change them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import numpy as np

from understudy_base import RETURN, RETURN_IS_PAD, DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.layouts import END_IS_CUT
from understudy_data.datasets.read.rows import Rows
from understudy_data.storage.mapped_tables import SharedState, share_arrays

SUCCESS = "success"
TIME = "time"
TRUNCATED = "truncated"
"""Name of the mark of cut episodes that a dataset may lack."""
_CUT = 0
_FAILED = 1
_SUCCEEDED = 2
_CACHE = 1 << 26  # bytes of loaded columns
_LARGEST = 1e9  # of a return


@dataclass(frozen=True)
class ReturnTarget:
    """Definition of returns; see the module."""

    returns: str
    """`success`, `time`, or the key of a column of rewards."""
    discount: float
    """Per frame; with 0 the return is the value of the column."""
    low: float
    """Lowest return; with `time`, minus `horizon`."""
    high: float
    """Highest return."""
    success: str = SUCCESS
    """Metadata of episodes, or feature whose value at the last frame counts: true where the episode
    succeeded.
    """
    truncated: str = TRUNCATED
    """As `success`: true where the episode was cut before its end."""


class Returns(SharedState):
    """Returns of the frames of a dataset.

    Those of rewards take 4 bytes per frame, which the processes of a host share where they are
    many.

    Args:
        catalog: the dataset.
        target: definition of the returns.
        rows: int64 (E,), table rows of the episodes in use.

    Raises:
        DatasetError: there is no such metadata or column, a success takes longer than the horizon,
            or a return is out of range.
    """

    def __init__(self, catalog: Catalog, target: ReturnTarget, rows: np.ndarray) -> None:
        self.target = target
        self._lengths = catalog.episodes.lengths
        self._fps = float(catalog.fps)
        self._outcome = np.full(len(self._lengths), _CUT, np.int8)
        self._outcome[rows] = _read_outcomes(catalog, target, rows)
        self.unknown = int((self._outcome[rows] == _CUT).sum())
        """Number of episodes whose end was cut, or is not known: they train no outcome."""
        self._table: Mapping[str, np.ndarray] = {}
        if target.returns == TIME:
            self._check_horizon(catalog, rows)
        elif target.returns != SUCCESS:
            self._read_column(catalog, rows)

    @property
    def known(self) -> bool:
        """Whether any return is known."""
        return bool((self._outcome != _CUT).any()) or not self.target.discount

    @property
    def digest(self) -> str:
        """16 hex digits of the definition, the outcomes and the rewards."""
        digest = hashlib.sha256(repr(asdict(self.target)).encode() + self._outcome.tobytes())
        for table in self._table.values():
            digest.update(np.ascontiguousarray(table).data)
        return digest.hexdigest()[:16]

    def read(self, rows: np.ndarray, frames: np.ndarray) -> dict[str, np.ndarray]:
        """Return {"return": float32 [B], "return_is_pad": bool [B], True where it is not known (and
        0)}.

        Args:
            rows: int64 [B], table rows.
            frames: int64 [B], frame numbers in the episodes.
        """
        target = self.target
        outcome = self._outcome[rows]
        ahead = (self._lengths[rows] - 1 - frames).astype(np.float64)
        left = target.discount**ahead
        if target.returns == SUCCESS:
            values = np.where(outcome == _SUCCEEDED, left, 0.0)
        elif target.returns == TIME:
            steps = ahead if target.discount == 1 else (1 - left) / (1 - target.discount)
            values = np.where(outcome == _FAILED, left * target.low, 0.0) - steps / self._fps
        else:
            values = self._table["returns"][self._table["first"][rows] + frames].astype(np.float64)
        is_pad = (outcome == _CUT) & (target.discount > 0)
        values = np.where(is_pad, 0.0, np.clip(values, target.low, target.high)).astype(np.float32)
        return {RETURN: values, RETURN_IS_PAD: is_pad}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that `rewards` reads."""
        return () if self.target.returns in (SUCCESS, TIME) else (self.target.returns,)

    def rewards(self, row: int, reader: Rows) -> tuple[np.ndarray, bool]:
        """Return the reward behind each frame of an episode, float64 (T,), and whether its end is
        terminal.
        """
        outcome = self._outcome[row]
        target = self.target
        length = int(self._lengths[row])
        if self.columns:
            recorded = reader.span(row, self.columns[0], 0, length)[:, 0]
            return recorded.astype(np.float64), outcome != _CUT
        reward_of_frame = -1 / self._fps if target.returns == TIME else 0.0
        rewards = np.full(length, reward_of_frame)
        if outcome != _CUT:
            of_failure, of_success = (target.low, 0.0) if target.returns == TIME else (0.0, 1.0)
            rewards[-1:] = of_success if outcome == _SUCCEEDED else of_failure
        return rewards, outcome != _CUT

    def _check_horizon(self, catalog: Catalog, rows: np.ndarray) -> None:
        successes = rows[self._outcome[rows] == _SUCCEEDED]
        seconds = (self._lengths[successes] - 1) / self._fps
        horizon = -self.target.low
        if len(successes) and horizon < seconds.max():
            episode = int(catalog.episodes.ids[successes[seconds.argmax()]])
            problem = (
                f"episode {episode} succeeds after {seconds.max():.6g} s, and policy.horizon "
                f"is {horizon:g} s"
            )
            fix = "set policy.horizon to the longest time to success, or leave the episode out"
            raise DatasetError(problem, where=catalog.root, fix=fix)

    def _read_column(self, catalog: Catalog, rows: np.ndarray) -> None:
        key = self.target.returns
        target = self.target
        feature = catalog.features.get(key)
        if (
            feature is None
            or feature.is_text
            or feature.is_camera
            or np.prod(feature.value_shape) != 1
        ):
            problem = f"policy.returns is {key!r}, which is not a feature with one number per frame"
            raise DatasetError(
                problem,
                where=catalog.root,
                fix=f"give {SUCCESS}, {TIME} or the key of such a feature",
            )
        reader = Rows(catalog, [key], _CACHE)
        first = np.zeros(len(self._lengths), np.int64)
        first[rows] = np.cumsum(self._lengths[rows]) - self._lengths[rows]
        table = np.empty(int(self._lengths[rows].sum()), np.float32)
        for row in rows.tolist():
            rewards, _ = self.rewards(row, reader)
            returns = np.empty(len(rewards))
            following = 0.0
            for frame in reversed(range(len(rewards))):
                returns[frame] = following = rewards[frame] + target.discount * following
            is_pad = self._outcome[row] == _CUT and target.discount > 0
            if not (np.abs(returns) < _LARGEST).all():  # also NaN
                episode = int(catalog.episodes.ids[row])
                problem = (
                    f"{key!r} of episode {episode} has values that are not finite, or of "
                    f"{_LARGEST:g} and more"
                )
                fix = (
                    "convert the values, or leave the episode out with --data.exclude-episodes "
                    f"{episode}"
                )
                raise DatasetError(problem, where=catalog.root, fix=fix)
            if not is_pad and not ((returns >= target.low) & (returns <= target.high)).all():
                low = returns.min()
                high = returns.max()
                problem = (
                    f"returns of episode {int(catalog.episodes.ids[row])} are {low:.6g} to "
                    f"{high:.6g}"
                )
                fix = (
                    f"set policy.value_range to bounds of all returns; it is {target.low:g} to "
                    f"{target.high:g}"
                )
                raise DatasetError(problem, where=catalog.root, fix=fix)
            table[first[row] : first[row] + len(returns)] = returns
        self._table = share_arrays({"returns": table, "first": first}, catalog.files.cache)


def _read_outcomes(catalog: Catalog, target: ReturnTarget, rows: np.ndarray) -> np.ndarray:
    """Outcome of each of `rows`, int8 (E,). With rewards in a column every end is terminal that is
    not cut.
    """
    with_rewards = target.returns not in (SUCCESS, TIME)
    truncated = _read_flags(catalog, target.truncated, rows, required=target.truncated != TRUNCATED)
    success = _read_flags(catalog, target.success, rows, required=not with_rewards)
    parts = _read_flags(catalog, END_IS_CUT, rows, required=False)
    outcomes = np.empty(len(rows), np.int8)
    for place, (won, cut, is_part) in enumerate(zip(success, truncated, parts)):
        unknown = bool(cut) or (won is None and not with_rewards)
        if is_part or (unknown and not won):
            outcomes[place] = _CUT
        else:
            outcomes[place] = _SUCCEEDED if won else _FAILED
    return outcomes


def _read_flags(
    catalog: Catalog, name: str, rows: np.ndarray, *, required: bool
) -> Sequence[bool | None]:
    """Value of metadata or of a feature at the last frame, for each of `rows`; None where it is
    missing.
    """
    metadata = catalog.episode_metadata()
    ids = catalog.episodes.ids[rows].tolist()
    feature = catalog.features.get(name)
    values: list[Any]
    if name in metadata:
        values = [metadata[name].get(episode) for episode in ids]
    elif feature is not None and not feature.is_text and not feature.is_camera:
        reader = Rows(catalog, [name], _CACHE)
        ends = catalog.episodes.lengths[rows]
        lasts = zip(rows.tolist(), ends.tolist())
        values = []
        for row, end in lasts:
            flag = reader.span(row, name, end - 1, end).reshape(-1)[0].item() if end else None
            values.append(flag)
    elif required:
        fix = (
            f"metadata are {', '.join(metadata) or 'none'}; `understudy edit --metadata` adds "
            f"{name!r}"
        )
        raise DatasetError(f"there is no metadata or feature {name!r}", where=catalog.root, fix=fix)
    else:
        return [None] * len(ids)
    for episode, value in zip(ids, values):
        if not isinstance(value, Real | None):
            problem = f"{name!r} of episode {episode} is {value!r}"
            raise DatasetError(
                problem, where=catalog.root, fix="give true, false or a number; null where unknown"
            )
    return [_as_flag(value) for value in values]


def _as_flag(value: Any) -> bool | None:
    """None for an absent value, and for NaN."""
    return None if value is None or value != value else bool(value)
