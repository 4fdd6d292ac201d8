"""Adapter between an environment and a policy: standard key -> key of the environment, norm head,
widths.

A source of the run's data names the keys of its robot (`data.sources`). An environment has the keys
of the datasets that are recorded in it, so the same names apply. Settings and order.json of the run
are enough: no dataset is opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy import DataConfig, Play
from understudy_base import PROMPT_METADATA, ConfigError, Record
from understudy_data import PromptMetadata
from understudy_robot.envs.env import IMAGE, Env

STATE = "observation.state"
TASK = "task"


@dataclass(frozen=True)
class EnvAdapter:
    """Standard key -> key of the environment, with norm head, widths and missing cameras."""

    names: Mapping[str, str]
    """Keys of the state, where the policy has one, and of each camera that this robot has."""
    missing: tuple[str, ...] = ()
    """Cameras of the policy that this robot lacks; a batch has zeros for them and
    `<camera>_is_missing`.
    """
    missable: tuple[str, ...] = ()
    """Cameras that any robot lacks; every batch has `<camera>_is_missing` for them, as in training.
    """
    image_size: tuple[int, int] = (64, 64)
    """Height and width of the zeros for a missing camera: the network's image size."""
    state_dim: int = 0
    """Width of the policy's state; a narrower one is padded with zeros, as in training. 0: no
    state.
    """
    action_dim: int = 0
    """Width of this robot's actions, at most that of the policy's."""
    head: int | None = None
    """Norm head that acts; None: the policy has one."""
    env_size: int | None = None
    """Height and width of the environment's images; None is its default."""
    metadata: str = ""
    """Metadata in the prompts, one field per line (`prompt_metadata.py`)."""

    @property
    def cameras(self) -> list[str]:
        """Cameras that the environment must render, as `open_env` takes them."""
        return [name.removeprefix(f"{IMAGE}s.") for key, name in self.names.items() if key != STATE]

    def windows(
        self, image_times: Sequence[float], state_times: Sequence[float]
    ) -> dict[str, Sequence[float]]:
        """Return the times of each key of the environment of which the policy sees the past."""
        times: dict[str, Sequence[float]] = {}
        for key, name in self.names.items():
            times[name] = state_times if key == STATE else image_times
        return {name: window for name, window in times.items() if window}

    def batch(
        self,
        observations: Sequence[Mapping[str, np.ndarray]],
        instructions: Sequence[str],
        device: str = "cpu",
        frames: int = 0,
    ) -> dict[str, Any]:
        """Make the policy's batch from the observations of B environments and B instructions, in
        standard keys.

        Args:
            observations: values by key of the environment; keys with a window have a dimension of
                time, and `<key>_is_pad`.
            instructions: one per environment.
            device: device of the batch.
            frames: frames of each camera that the policy sees; 0: the present, without a dimension
                of time.
        """
        rows = len(instructions)
        batch: dict[str, Any] = {TASK: list(instructions)}
        if self.metadata:
            batch[PROMPT_METADATA] = [self.metadata] * rows
        for key, name in self.names.items():
            batch[key] = _stacked(observations, name, device)
            if (is_pad := f"{name}_is_pad") in observations[0]:
                batch[f"{key}_is_pad"] = _stacked(observations, is_pad, device)
        if STATE in batch and (lacks := self.state_dim - batch[STATE].shape[-1]) > 0:
            batch[STATE] = torch.nn.functional.pad(batch[STATE], (0, lacks))
        window = (frames,) if frames else ()
        for camera in self.missing:
            shape = (rows, *window, 3, *self.image_size)
            batch[camera] = torch.zeros(shape, dtype=torch.uint8, device=device)
            if frames:
                batch[f"{camera}_is_pad"] = torch.ones(
                    rows, frames, dtype=torch.bool, device=device
                )
        for camera in self.missable:
            batch[f"{camera}_is_missing"] = torch.full(
                (rows,), camera in self.missing, device=device
            )
        if self.head is not None:
            batch["head"] = torch.full((rows,), self.head, dtype=torch.int64, device=device)
        return batch


@dataclass(frozen=True)
class _SourceKeys:
    """Keys and norm head of one source."""

    state: str
    cameras: Mapping[str, str] = field(default_factory=dict)
    head: str = ""


def make_adapter(data: DataConfig, frozen: Record, play: Play) -> EnvAdapter:
    """Make the adapter between the policy of a run and the robot of one of its sources.

    Args:
        data: settings of the run's data.
        frozen: `policy` and `normalisation`, and `sources` where it is a run's order.json.
        play: settings of the rollout.

    Raises:
        ConfigError: there is no such source, or the sources differ and none is named; or the
            prompts of training lack a name of the metadata.
    """
    if unknown := [name for name in play.prompt_metadata if name not in data.prompt_metadata]:
        trained = ", ".join(data.prompt_metadata) or "no metadata"
        raise ConfigError(f"prompt_metadata: {unknown[0]}: the prompts of training have {trained}")
    policy = frozen["policy"]
    norm = frozen["normalisation"]
    heads: Sequence[str] = norm.get("heads", [""])
    cameras = tuple(policy["cameras"])
    state_dim = policy["state_dim"]
    keys_by_source = dict(zip(data.names(), _source_keys(data, frozen, cameras, bool(state_dim))))
    if play.source and play.source not in keys_by_source:
        raise ConfigError(f"source: {play.source!r}: the run has {', '.join(keys_by_source)}")
    chosen = [keys_by_source[play.source]] if play.source else list(keys_by_source.values())
    if any(chosen_keys != chosen[0] for chosen_keys in chosen):
        raise ConfigError(
            "source: the sources of this run differ in their keys of state and cameras, or in "
            f"their norm head; name the one whose robot plays: {', '.join(keys_by_source)}"
        )
    chosen_keys = chosen[0]
    if len(heads) > 1 and chosen_keys.head not in heads:
        raise ConfigError(
            f"the policy has the norm heads {', '.join(heads)}; play it from its run, which says "
            "whose"
        )
    head = heads.index(chosen_keys.head) if chosen_keys.head in heads else 0
    names = dict(chosen_keys.cameras)
    if state_dim:
        names = {STATE: play.state or chosen_keys.state, **names}
    missable = []
    for camera in cameras:
        if any(camera not in other.cameras for other in keys_by_source.values()):
            missable.append(camera)
    dims = norm.get("dims", {})
    action_dim = dims["action"][head] if "action" in dims else policy["action_dim"]
    acting_head = head if len(heads) > 1 else None
    return EnvAdapter(
        names=names,
        missing=tuple(camera for camera in cameras if camera not in chosen_keys.cameras),
        missable=tuple(missable),
        image_size=tuple(policy.get("image_size") or policy["picture"]),
        state_dim=state_dim,
        action_dim=action_dim,
        head=acting_head,
        metadata=PromptMetadata(tuple(data.prompt_metadata)).lines(play.prompt_metadata),
    )


def check_env(adapter: EnvAdapter, world: Env, frozen: Record) -> None:
    """Raise ConfigError where the environment lacks a key of the adapter, or has it in another
    width.
    """
    vectors = {
        key: f["shape"][0]
        for key, f in world.features.items()
        if len(f["shape"]) == 1 and key != "action"
    }
    dims = frozen["normalisation"].get("dims", {})
    state_dim = dims[STATE][adapter.head or 0] if STATE in dims else adapter.state_dim
    if state := adapter.names.get(STATE):
        if state not in vectors:
            raise ConfigError(f"state: {world.name} has no {state!r}; it has {', '.join(vectors)}")
        if vectors[state] != state_dim:
            fits = [key for key, width in vectors.items() if width == state_dim]
            hint = f"; --state {fits[0]} would fit" if fits else ""
            text = (
                f"state: the policy's has {state_dim} numbers, {state!r} of {world.name} "
                f"{vectors[state]}"
            )
            raise ConfigError(text + hint)
    if (width := world.features["action"]["shape"][0]) != adapter.action_dim:
        raise ConfigError(
            f"the policy's actions have {adapter.action_dim} numbers, those of {world.name} {width}"
        )


def _source_keys(
    data: DataConfig, frozen: Record, cameras: Sequence[str], state: bool
) -> list[_SourceKeys]:
    """Keys of each source; a source without `cameras` has those of its dataset, by their own
    keys.
    """
    recorded = frozen.get("sources") or [{}] * len(data.mixed())
    keys_by_source = []
    for source, entry in zip(data.mixed(), recorded, strict=True):
        present = [camera for camera in cameras if camera in source.cameras or not source.cameras]
        present = [camera for camera in present if camera in entry.get("cameras", present)]
        names = {camera: source.cameras.get(camera, camera) for camera in present}
        state_key = source.state if state else ""
        keys_by_source.append(_SourceKeys(state_key, names, entry.get("head", "")))
    return keys_by_source


def _stacked(observations: Sequence[Mapping[str, np.ndarray]], key: str, device: str) -> Tensor:
    """Stack the values of a key to [B, …], images to [B, …, C, H, W]."""
    values = torch.from_numpy(np.stack([observation[key] for observation in observations])).to(
        device
    )
    return (
        values.movedim(-1, -3).contiguous() if key.startswith(IMAGE) and values.ndim > 3 else values
    )
