"""Settings of a policy that a run writes: the base class of all of them. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from understudy.policies.capabilities.files import files_of, with_absolute_files
from understudy.policies.capabilities.start import ChecksStart, StartsFromWeights, weights_of
from understudy.policies.registry import ChosenByType, policy_type
from understudy_base import ConfigError, Record, UnderstudyError
from understudy_data import Checksums


@dataclass(frozen=True, kw_only=True)
class PolicySettings(ChosenByType):
    """Settings of a policy; `type` selects the class, `flow` where a file names none.

    What only some policies have is in `capabilities`: a class has a capability by its methods.
    """

    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("*",)
    """Patterns of the modules whose linear layers get low-rank adapters unless a run names others;
    default: all.
    """
    PARTS: ClassVar[Mapping[str, str]] = {}
    """Pattern of parameter names -> part of the policy (`layers.*.expert.*`: `expert`); the first
    match wins. Settings may then write a parameter's name behind its part (`expert.*`). The default
    part is the first part of the name.
    """
    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute",)
    """Fields that the weights do not depend on: two configs that differ in these alone describe one
    network.
    """
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "mean_std"
    """Normalization by the data that this type expects: the default of `data.normalize`."""
    TORCH_ATTENTION: ClassVar[bool] = True
    """Whether the network may call `scaled_dot_product_attention`, whose kernel the setting
    `attention` names.
    """

    image_size: tuple[int, int] = (64, 64)
    """Height and width of the network's images; images of another size are area-averaged."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width of the images that the network computes with."""
        return self.image_size

    def run_defaults(self, steps: int, lora_rank: int) -> Record:
        """Return the defaults of a run of this type, those of a group nested:
        `{"steps": 100, "optim": {"lr": 1e-5}}`.

        A flag or a settings file takes precedence over them, and they over the defaults of every
        run.

        Args:
            steps: length of the run.
            lora_rank: rank of its adapters; 0: none.

        Raises:
            MissingExtraError: they come from a package that is not installed.
        """
        return {}

    def windows(self, chunk: int, cameras: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Return the frames that training and validation read of a state or a camera, by key,
        whatever the mode is.

        `{STATE: range(chunk + 1)}` is the present state and the one after each action:
        `observation.state` of a batch is then [B, 1 + T, S], and `observation.state_is_pad`, bool
        [B, 1 + T], is true behind the end of an episode. A camera is [B, N, 3, H, W]. `act` has the
        present alone.

        Args:
            chunk: actions per chunk (T).
            cameras: keys of the policy's cameras.

        Returns:
            Offsets in frames from the present, which is the first one, 0, ascending. Empty: the
                present of each key.
        """
        return {}

    def problems(self) -> list[str]:
        """List the rules that the values break, one line `field: value: rule` each."""
        return []

    def resolved(self) -> Self:
        """Return the settings with absolute paths, so that they mean the same in another working
        directory.
        """
        return with_absolute_files(self)


def check_start(config: Any) -> None:
    """Check the config of a new run against the files that it starts from, where its policy can.

    Raises:
        ConfigError: they contradict each other; names both values. Or a file of the folder
            `weights` is not the one that was written.
    """
    weights = weights_of(config)
    if weights and Path(weights).is_dir():
        try:
            Checksums(Path(weights)).check()
        except (OSError, UnderstudyError) as error:
            raise ConfigError(f"policy.weights: {error}") from error
    policy = policy_type(config.type).load()
    if isinstance(policy, ChecksStart):
        policy.check_start(config)


def network_differences(first: Any, second: Any) -> list[str]:
    """List the fields, with both values, in which two configs describe different networks."""
    if type(first) is not type(second):
        return [f"type: {first.type} there, {second.type} here"]
    theirs, ours = (_flat(asdict(config)) for config in (first, second))
    at_start = first.AT_START if isinstance(first, StartsFromWeights) else ()
    ignored = {*first.RUN_ONLY, *at_start, *files_of(first)}
    names = [
        name for name in ours | theirs if name not in ignored and theirs.get(name) != ours.get(name)
    ]
    return [f"{name}: {theirs.get(name)} there, {ours.get(name)} here" for name in names]


def _flat(values: Record) -> dict[str, Any]:
    """Replace the mapping `config`, of a policy of another package, by its fields,
    `config.NAME`.
    """
    package = values.get("config")
    if not isinstance(package, Mapping):
        return dict(values)
    return {
        **values,
        "config": None,
        **{f"config.{name}": value for name, value in package.items()},
    }
