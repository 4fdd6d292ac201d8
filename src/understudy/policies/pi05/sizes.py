"""Dimensions of a pi0.5 or pi0 network. No torch.

`BASE` are those of the released checkpoints, `TINY` those of a network that trains on a CPU in minutes. A JSON object
with the field names of `Sizes` gives any other (`Sizes.from_mapping`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar

from understudy.policies.common.towers.tower_sizes import TowerSizes

T = TypeVar("T")

MEMORY = "mem"
"""Key of reference files: {"frames": of a video, "every": `VisionSizes.temporal_every`}."""


@dataclass(frozen=True, kw_only=True)
class VisionSizes:
    """Dimensions of the vision encoder (SigLIP, Zhai et al. 2023)."""

    width: int
    """Features per token."""
    depth: int
    """Layers."""
    mlp: int
    """Hidden features of the MLP."""
    heads: int
    """Attention heads; they divide `width`."""
    patch: int
    """Side of a patch in pixels."""
    image: int
    """Side of the square input image in pixels, a multiple of `patch`."""
    temporal_every: int = 4
    """Every N-th layer attends to past frames, where a policy has them: with 4 the layers 3, 7, 11, ... Of fewer than N
    layers the last one does."""

    @property
    def temporal_layers(self) -> range:
        """Numbers of the layers that attend to past frames; at least one."""
        return range(min(self.temporal_every, self.depth) - 1, self.depth, self.temporal_every)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return (self.image // self.patch) ** 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Dimensions of a network: a vision encoder, a language tower and an action expert of equally many layers.

    Raises:
        ValueError: a value that breaks a rule; the message lists all of them.
    """

    BASE: ClassVar["Sizes"]
    """The released pi0.5 (3,353,433,872 parameters); with `adaptive=False` the released pi0 (3,238,048,528)."""
    TINY: ClassVar["Sizes"]
    """A network that trains on a CPU in minutes."""

    vision: VisionSizes
    """The vision encoder."""
    vlm: TowerSizes
    """The tower of images and text."""
    expert: TowerSizes
    """The tower of actions. Its `depth` and its heads are those of `vlm`."""
    vocab: int
    """Rows of the token embedding."""
    chunk: int
    """Actions predicted at once."""
    dim: int
    """Width of actions and states inside the network; narrower ones are padded with zeros."""
    adaptive: bool = True
    """True is pi0.5: the flow time modulates the expert's norms. False is pi0: a state token, and the time beside each
    action."""

    def __post_init__(self) -> None:
        if found := self.problems():
            raise ValueError("; ".join(found))

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = [
            f"{name}: {value}: must be a whole number of at least 1"
            for name, value in _numbers(self).items()
            if isinstance(value, bool) or not isinstance(value, int) or value < 1
        ]
        if found:
            return found
        vision, vlm, expert = self.vision, self.vlm, self.expert
        if vision.width % vision.heads:
            found.append(f"vision.heads: {vision.heads}: must divide vision.width {vision.width}")
        if vision.image % vision.patch:
            found.append(f"vision.image: {vision.image}: must be a multiple of vision.patch {vision.patch}")
        for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(vlm, name) != getattr(expert, name):
                rule = f"must be that of vlm, {getattr(vlm, name)}: the towers attend to each other in each layer"
                found.append(f"expert.{name}: {getattr(expert, name)}: {rule}")
        if vlm.num_heads % vlm.num_kv_heads:
            found.append(f"vlm.num_kv_heads: {vlm.num_kv_heads}: must divide vlm.num_heads {vlm.num_heads}")
        if vlm.head_dim % 2:
            found.append(f"vlm.head_dim: {vlm.head_dim}: must be even, for rotary positions")
        if expert.width % 2:
            found.append(f"expert.width: {expert.width}: must be even, for sines and cosines of the flow time")
        return found

    @classmethod
    def from_mapping(cls, stored: Mapping[str, Any], **given: Any) -> Self:
        """Read the sizes from JSON: `{"vision": {...}, "vlm": {...}, "expert": {...}, "vocab": ..., ...}`.

        Args:
            stored: the object; all fields but `adaptive` and `vision.temporal_every` are required. `mem.every` is
                another name of the latter.
            given: fields that replace those of `stored`.

        Raises:
            ValueError: a missing or unknown field, or a value that breaks a rule.
        """
        values = {**stored, **given}
        memory = values.pop(MEMORY, None)
        if isinstance(memory, Mapping) and "every" in memory and isinstance(values.get("vision"), Mapping):
            values["vision"] = {"temporal_every": memory["every"], **values["vision"]}
        for name, kind in (("vision", VisionSizes), ("vlm", TowerSizes), ("expert", TowerSizes)):
            if isinstance(values.get(name), Mapping):
                values[name] = _read(kind, values[name], f"{name}.", optional=("temporal_every",))
        return _read(cls, values, "", optional=("adaptive",))


def _numbers(sizes: Sizes) -> dict[str, Any]:
    """Every number of `sizes` by its dotted name."""
    found: dict[str, Any] = {}
    for field in fields(sizes):
        value = getattr(sizes, field.name)
        if isinstance(value, VisionSizes | TowerSizes):
            found |= {f"{field.name}.{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        elif field.name != "adaptive":
            found[field.name] = value
    return found


def _read(kind: type[T], stored: Mapping[str, Any], prefix: str, optional: tuple[str, ...] = ()) -> T:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    missing = [prefix + name for name in known if name not in stored and name not in optional]
    unknown = [prefix + str(name) for name in stored if name not in known]
    if missing or unknown:
        lacks = f"missing {', '.join(missing)}" if missing else ""
        extra = f"unknown {', '.join(unknown)}" if unknown else ""
        raise ValueError(f"sizes: {'; '.join(filter(None, (lacks, extra)))}")
    return kind(**stored)


BASE = Sizes.BASE = Sizes(
    vision=VisionSizes(width=1152, depth=27, mlp=4304, heads=16, patch=14, image=224),
    vlm=TowerSizes(width=2048, depth=18, mlp_dim=16384, num_heads=8, num_kv_heads=1, head_dim=256),
    expert=TowerSizes(width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256),
    vocab=257_152,
    chunk=50,
    dim=32,
)

TINY = Sizes.TINY = Sizes(
    vision=VisionSizes(width=64, depth=3, mlp=128, heads=4, patch=8, image=64),
    vlm=TowerSizes(width=96, depth=4, mlp_dim=256, num_heads=4, num_kv_heads=1, head_dim=24),
    expert=TowerSizes(width=64, depth=4, mlp_dim=192, num_heads=4, num_kv_heads=1, head_dim=24),
    vocab=1024,
    chunk=8,
    dim=32,
)
