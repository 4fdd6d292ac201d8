"""How a run's policy is connected to a world: which of the world's keys are its standard keys, and which head acts.

A source of the run's data says what its robot calls the policy's state and cameras (`data.sources`); a world speaks the
language of what is recorded in it, so the same names hold. Worked out from the run's settings and order.json alone: no
dataset is opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from understudy.config.data import DataConfig
from understudy.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from understudy.config.rollout import Play
    from understudy.envs.env import Env

STATE, TASK, PICTURES = "observation.state", "task", "observation.images."


@dataclass(frozen=True)
class EnvAdapter:
    """Standard key -> key of the world, and what a policy for several robots needs besides."""

    names: Mapping[str, str]
    """For the state, where the policy has one, and each camera that this robot has."""
    missing: tuple[str, ...] = ()
    """Cameras of the policy that this robot has not: handed out as zeros with `<camera>_is_missing`."""
    missable: tuple[str, ...] = ()
    """Cameras that any robot lacks: `<camera>_is_missing` stands in every batch, as in training."""
    picture: tuple[int, int] = (64, 64)
    """Height and width of what stands in for a missing one: what the network sees."""
    state_dim: int = 0
    """Width of the policy's state; a narrower one is padded with zeros, as in training. 0: no state."""
    action_dim: int = 0
    """How many numbers of an action are this robot's, of those the policy predicts."""
    head: int | None = None
    """Norm head that acts; None: the policy has one."""

    @property
    def cameras(self) -> list[str]:
        """What the world has to draw, by the names that `open_env` takes."""
        return [own.removeprefix(PICTURES) for key, own in self.names.items() if key != STATE]

    def batch(
        self, seen: "Sequence[Mapping[str, np.ndarray]]", told: Sequence[str], device: str = "cpu"
    ) -> dict[str, Any]:
        """Observations of B worlds and B instructions as the policy takes them, in standard keys."""
        import torch

        rows = len(told)
        batch: dict[str, Any] = {TASK: list(told)}
        for key, own in self.names.items():
            batch[key] = _stacked(seen, own, device)
        if STATE in batch and (lacks := self.state_dim - batch[STATE].shape[1]) > 0:
            batch[STATE] = torch.nn.functional.pad(batch[STATE], (0, lacks))
        for camera in self.missing:
            batch[camera] = torch.zeros((rows, 3, *self.picture), dtype=torch.uint8, device=device)
        for camera in self.missable:
            batch[f"{camera}_is_missing"] = torch.full((rows,), camera in self.missing, device=device)
        if self.head is not None:
            batch["head"] = torch.full((rows,), self.head, dtype=torch.int64, device=device)
        return batch


@dataclass(frozen=True)
class _Plug:
    """What one source says."""

    state: str
    cameras: Mapping[str, str] = field(default_factory=dict)
    head: str = ""


def make_adapter(data: DataConfig, frozen: Mapping[str, Any], play: "Play") -> EnvAdapter:
    """What connects the policy of a run to the robot of one of its sources.

    Args:
        data: of the run's settings. frozen: `policy` and `normalisation`, and `sources` where it is a run's order.json.
    Raises:
        ConfigError: there is no such source, or the sources do not have one answer in common and none is named.
    """
    policy, norm = frozen["policy"], frozen["normalisation"]
    heads: Sequence[str] = norm.get("heads", [""])
    cameras, state_dim = tuple(policy["cameras"]), policy["state_dim"]
    plugs = dict(zip(data.names(), _plugs(data, frozen, cameras, bool(state_dim))))
    if play.source and play.source not in plugs:
        raise ConfigError(f"source: {play.source!r}: the run has {', '.join(plugs)}")
    chosen = [plugs[play.source]] if play.source else list(plugs.values())
    if any(plug != chosen[0] for plug in chosen):
        raise ConfigError(
            "source: the sources of this run differ in what they call the policy's state and cameras, or in their norm "
            f"head; name the one whose robot plays: {', '.join(plugs)}"
        )
    plug = chosen[0]
    if len(heads) > 1 and plug.head not in heads:
        raise ConfigError(f"the policy has the norm heads {', '.join(heads)}; play it from its run, which says whose")
    head = heads.index(plug.head) if plug.head in heads else 0
    names = ({STATE: play.state or plug.state} if state_dim else {}) | dict(plug.cameras)
    dims = norm.get("dims", {})
    return EnvAdapter(
        names=names,
        missing=tuple(camera for camera in cameras if camera not in plug.cameras),
        missable=tuple(c for c in cameras if any(c not in other.cameras for other in plugs.values())),
        picture=tuple(policy["picture"]),
        state_dim=state_dim,
        action_dim=dims["action"][head] if "action" in dims else policy["action_dim"],
        head=head if len(heads) > 1 else None,
    )


def check_env(wired: EnvAdapter, world: "Env", frozen: Mapping[str, Any]) -> None:
    """Raises ConfigError when the world does not have what is asked of it, or in another width."""
    vectors = {key: f["shape"][0] for key, f in world.features.items() if len(f["shape"]) == 1 and key != "action"}
    dims = frozen["normalisation"].get("dims", {})
    wanted = dims[STATE][wired.head or 0] if STATE in dims else wired.state_dim
    if own := wired.names.get(STATE):
        if own not in vectors:
            raise ConfigError(f"state: {world.name} has no {own!r}; it has {', '.join(vectors)}")
        if vectors[own] != wanted:
            fits = [key for key, width in vectors.items() if width == wanted]
            hint = f"; --state {fits[0]} would fit" if fits else ""
            raise ConfigError(f"state: the policy's has {wanted} numbers, {own!r} of {world.name} {vectors[own]}{hint}")
    if (width := world.features["action"]["shape"][0]) != wired.action_dim:
        raise ConfigError(f"the policy's actions have {wired.action_dim} numbers, those of {world.name} {width}")


def _plugs(data: DataConfig, frozen: Mapping[str, Any], cameras: Sequence[str], state: bool) -> list[_Plug]:
    """One for each source; cameras that a source does not name are those of its dataset, by their own keys."""
    recorded = frozen.get("sources") or [{}] * len(data.mixed())
    plugs = []
    for source, entry in zip(data.mixed(), recorded, strict=True):
        there = [camera for camera in cameras if camera in source.cameras or not source.cameras]
        there = [camera for camera in there if camera in entry.get("cameras", there)]
        named = {camera: source.cameras.get(camera, camera) for camera in there}
        plugs.append(_Plug(source.state if state else "", named, entry.get("head", "")))
    return plugs


def _stacked(seen: "Sequence[Mapping[str, np.ndarray]]", key: str, device: str) -> "Tensor":
    """[B, …]; pictures as [B, C, H, W]."""
    import numpy as np
    import torch

    values = torch.from_numpy(np.stack([each[key] for each in seen])).to(device)
    return values.permute(0, 3, 1, 2).contiguous() if key.startswith(PICTURES) else values
