"""Settings that all policies of LeRobot share: folders both ways, and the colors of images. No torch, no lerobot."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from understudy.errors import ConfigError
from understudy.policies.registry import PolicyConfig, PolicySettings

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IDENTITY = {"image_mean": [0.0] * 3, "image_std": [1.0 - 1e-8] * 3}
"""Colors as they are: LeRobot adds 1e-8 to deviations."""
RECORDED = (0, 0)
"""Value of `image_size` that means the size of the recordings."""
NO_WEIGHTS = "none"
"""Value of `pretrained_backbone_weights` that means fresh weights."""
OURS = (
    {field.name for field in fields(PolicySettings)}
    | {"image_mean", "image_std", "weights"}
    | {"pretrained_backbone_weights"}
)
"""Settings that LeRobot's configs lack."""


@dataclass(frozen=True, kw_only=True)
class LerobotSettings(PolicySettings):
    """Settings with the names and defaults of a config of LeRobot."""

    FOLDER: ClassVar[str] = "understudy.policies.lerobot.folder:read_folder"
    FORMATS: ClassVar[Mapping[str, str]] = {"lerobot": "understudy.policies.lerobot.folder:describe_folder"}
    THEIR_TYPE: ClassVar[str] = ""
    """Type in LeRobot's config.json."""
    THEIR_CONFIG: ClassVar[str] = ""
    """LeRobot's config class, as "module:name"."""

    def run_defaults(self, steps: int, lora_rank: int) -> Mapping[str, Any]:
        """Return the preset of LeRobot's config class; see `PolicySettings.run_defaults`."""
        from understudy.policies.lerobot.preset import read_preset

        own_chunk = self.stored_chunk() is not None or bool(getattr(self, "weights", ""))
        return read_preset(self.THEIR_CONFIG, steps, with_chunk=not own_chunk)

    @classmethod
    def shared_fields(cls) -> list[str]:
        """Return the names of the settings that LeRobot's config has, too."""
        return [field.name for field in fields(cls) if field.name not in OURS]

    @classmethod
    def read_stored(cls, stored: Mapping[str, Any], normalized: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of our config that follow from LeRobot's config.json, beside `shared_fields`.

        Args:
            stored: content of config.json.
            normalized: `image_mean` and `image_std` of the folder's normalization, `IDENTITY` without one.

        Raises:
            ValueError: the policy needs something that ours lacks.
        """
        return {}


@dataclass(frozen=True, kw_only=True)
class ColorSettings(LerobotSettings):
    """Settings of a policy whose images are normalized by mean and deviation."""

    image_size: tuple[int, int] = RECORDED
    """Height and width of the network's images; images of another size are area-averaged. The default is the size of
    the recordings, as in LeRobot."""
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    """Mean of the colors in 0..1 by which images are normalized, three numbers; ImageNet's, as LeRobot's default is."""
    image_std: tuple[float, ...] = IMAGENET_STD
    """Deviation of the colors."""

    def fitted(self, sizes: Mapping[str, tuple[int, int] | None]) -> Self:
        """Return the settings with the size of the recordings, where `image_size` asks for it; see the base class."""
        if tuple(self.image_size) != RECORDED or not sizes:
            return self
        size = next(iter(sizes.values()))
        if size is None or set(sizes.values()) != {size}:
            named = ", ".join(f"{camera} {shape_of(own)}" for camera, own in sizes.items())
            raise ConfigError(f"policy.image_size: the cameras have no common size ({named}); give height and width")
        return replace(self, image_size=size)

    @classmethod
    def read_stored(cls, stored: Mapping[str, Any], normalized: Mapping[str, Any]) -> dict[str, Any]:
        """Return the colors; see the base class."""
        return dict(normalized)

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = []
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if len(values) != 3 or (name == "image_std" and min(values) <= 0):
                found.append(f"{name}: {values}: must be three numbers, deviations above 0")
        if tuple(self.image_size) != RECORDED and (len(self.image_size) != 2 or min(self.image_size) < 32):
            found.append(f"image_size: {self.image_size}: height and width must be at least 32")
        return found


@dataclass(frozen=True, kw_only=True)
class LerobotConfig(LerobotSettings, PolicyConfig):
    """Facts of the data that all policies of LeRobot need."""

    def __post_init__(self) -> None:
        if found := [*self.fact_problems(), *self.problems()]:
            raise ValueError("; ".join(found))

    def their_fields(self) -> dict[str, Any]:
        """Return the fields of LeRobot's config that are no settings: windows and the like."""
        raise NotImplementedError

    def their_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return further steps of LeRobot's preprocessor: registered names, and configs."""
        return []

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        found = super().fact_problems()
        if self.compute != "float32":
            found.append(f"compute: {self.compute}: {self.type} computes in float32; set precision to fp32")
        if not self.cameras or not self.state_dim:
            found.append(f"cameras: {self.type} needs a camera and a state")
        elif tuple(self.image_size) == RECORDED:
            found.append("image_size: (0, 0): the size of the recordings is not known here; give height and width")
        if self.future:
            found.append(f"future: True: {self.type} predicts no states")
        return found


def shape_of(size: tuple[int, int] | None) -> str:
    """Return a height and a width as text, `240x320`."""
    return "of an unknown size" if size is None else f"{size[0]}x{size[1]}"


def too_small(settings: Any, names: tuple[str, ...]) -> list[str]:
    """Return a line for each of the named numbers that is below 1."""
    return [f"{name}: {getattr(settings, name)}: must be at least 1" for name in names if getattr(settings, name) < 1]
