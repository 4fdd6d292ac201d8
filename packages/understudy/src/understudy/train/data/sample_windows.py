"""The windows of a run's samples: the chunk of actions, and what the policy, its history or a mode
reads besides.
"""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from understudy.config.samples import SampleSettings
from understudy.policies.capabilities.future import images_ahead
from understudy.policies.capabilities.past import Past
from understudy_base import ACTION, STATE, ConfigError

FARTHEST = 2**16
"""Largest offset of a window in frames, as the longest chunk."""


def sample_windows(
    settings: SampleSettings, fps: float, cameras: Sequence[str], has_state: bool
) -> dict[str, list[float]]:
    """Return the times of the steps of a sample, in seconds from its frame, by key.

    Args:
        settings: those of the run's samples.
        fps: frames per second of the source.
        cameras: the policy's cameras.
        has_state: whether the source has a state.

    Raises:
        ConfigError: `PolicySettings.windows` names no key of the run, or offsets that are not from
            0 on.
    """
    chunk = settings.data.actions_per_chunk
    ahead = _own_windows(settings, cameras, has_state)
    past = Past.of(settings.policy)
    steps = [i / fps for i in range(chunk + 1)]
    previous = [-i / fps for i in range(past.actions, 0, -1)]
    windows = {ACTION: [*previous, *steps[:-1]]}
    for key, offsets in ahead.items():
        windows[key] = [frames / fps for frames in offsets]
    if settings.modes.learn_dynamics():
        windows[STATE] = steps
    image_times, state_times = past.times(fps)
    windows |= {camera: list(image_times) for camera in cameras if image_times}
    if state_times and has_state:
        windows[STATE] = list(state_times)
    if settings.modes.learn_dynamics() and (images := images_ahead(settings.policy, chunk)):
        for camera in cameras:
            windows[camera] = [0.0, *(steps[frames] for frames in images)]
    return windows


def _own_windows(
    settings: SampleSettings, cameras: Sequence[str], has_state: bool
) -> dict[str, list[int]]:
    """Return the offsets of `PolicySettings.windows` in frames, checked, by key."""
    chunk = settings.data.actions_per_chunk
    named: Any = settings.policy.windows(chunk, tuple(cameras))
    where = f"windows of policy.type {settings.policy.type}"
    if not isinstance(named, Mapping):
        raise ConfigError(
            f"{where}: {named!r}: return offsets by key, as in {{STATE: range(chunk + 1)}}"
        )
    keys = [STATE, *cameras] if has_state else list(cameras)
    ours: dict[str, list[int]] = {}
    for key, offsets in named.items():
        if key not in keys:
            known = {
                ACTION: "its window is the chunk, data.chunk_size",
                STATE: "there is no state, see data.state",
            }
            why = known.get(key, "there is no such key")
            raise ConfigError(
                f"{where}: {key!r}: {why}; this run has "
                f"{', '.join(keys) or 'neither state nor camera'}"
            )
        ours[key] = _offsets(f"{where}: {key!r}", offsets)
        if other := _other_window(settings, key, chunk, ours[key]):
            raise ConfigError(
                f"{where}: {key!r}: {other} gives this key another window: leave out one of both"
            )
    return ours


def _offsets(where: str, offsets: Any) -> list[int]:
    """Return offsets as numbers. Raises ConfigError where they are not whole, ascending and from
    the present on.
    """
    rule = "give whole numbers of frames from the present on, ascending, as in range(chunk + 1)"
    if isinstance(offsets, (str, bytes)) or not isinstance(offsets, Iterable):
        raise ConfigError(f"{where}: {offsets!r}: {rule}")
    frames: list[int] = []
    for offset in offsets:
        if isinstance(offset, bool) or not isinstance(offset, Integral):
            raise ConfigError(f"{where}: {offset!r}: {rule}")
        number = int(offset)
        if not frames and number:
            raise ConfigError(f"{where}: begins with {number}, not with 0, the present: {rule}")
        if frames and number <= frames[-1]:
            raise ConfigError(f"{where}: {number} follows {frames[-1]}: {rule}")
        if number > FARTHEST:
            raise ConfigError(f"{where}: {number}: at most {FARTHEST} frames ahead")
        frames.append(number)
    if not frames:
        raise ConfigError(f"{where}: no offset: {rule}")
    return frames


def _other_window(settings: SampleSettings, key: str, chunk: int, offsets: Sequence[int]) -> str:
    """Name the setting that gives a key another window than these offsets; "": none does."""
    policy = settings.policy
    trains_future = settings.modes.learn_dynamics()
    past = Past.of(policy)
    times = past.states if key == STATE else past.images
    if past.steps or times:
        return "the history of the policy"
    if key == STATE:
        is_other = trains_future and offsets != list(range(chunk + 1))
        return f"mode {settings.modes.mode}" if is_other else ""
    images = images_ahead(policy, chunk) if trains_future else ()
    return f"mode {settings.modes.mode}" if images and offsets != [0, *images] else ""
