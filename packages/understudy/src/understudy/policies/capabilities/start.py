"""Start of a new run: capabilities of policies that take something from elsewhere."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from understudy_base import Record


@runtime_checkable
class StartsFromWeights(Protocol):
    """Settings of a policy whose new runs start from the network of a folder."""

    START_FILES: ClassVar[Mapping[str, tuple[str, ...]]]
    """Fields that name such a folder -> patterns of the files that are read there."""
    AT_START: ClassVar[tuple[str, ...]]
    """Fields that matter only when a run starts."""
    weights: str
    """The folder, a file of it, or the id of a hub repository; "" for fresh weights."""

    def started(self) -> Self:
        """Return the settings of a new run: with those that follow from the files.

        Raises:
            ConfigError: a file is damaged.
        """


def weights_of(settings: object) -> str:
    """Return the weights that a new run starts from, also those that the policy reads itself
    (`Policy.start_weights`); "" for fresh ones.
    """
    weights: str = getattr(settings, "weights", "")
    return weights


@runtime_checkable
class ChecksStart(Protocol):
    """Class of a policy that compares the config of a new run with the files it starts from."""

    @staticmethod
    def check_start(config: Any) -> None:
        """Check the config of a new run.

        Raises:
            ConfigError: config and files contradict each other; names both values.
        """


@runtime_checkable
class FixesChunk(Protocol):
    """Settings of a policy that decide the actions per chunk where a run names none."""

    def stored_chunk(self) -> int | None:
        """Return the actions per chunk; None: the settings leave them open."""


def stored_chunk(settings: object) -> int | None:
    """Return the actions per chunk that the settings decide; None: they leave them open."""
    return settings.stored_chunk() if isinstance(settings, FixesChunk) else None


@runtime_checkable
class ChoosesNormalization(Protocol):
    """Settings of a policy whose new runs may have another normalization than that of their
    data.
    """

    @property
    def figures_of_weights(self) -> str:
        """Weights whose own normalization is taken; "": it is that of the data."""

    def choose_normalization(self, computed: Record) -> Record:
        """Return the normalization of a new run: `computed` from its data, or that of the weights.

        Raises:
            ValueError: these weights have none, or one of another robot.
        """


def figures_of_weights(settings: object) -> str:
    """Return the weights whose own normalization a new run takes; "": it is that of the data."""
    return settings.figures_of_weights if isinstance(settings, ChoosesNormalization) else ""


def chosen_normalization(settings: object, computed: Record) -> Record:
    """Return the normalization of a new run; see `ChoosesNormalization`."""
    if isinstance(settings, ChoosesNormalization):
        return settings.choose_normalization(computed)
    return computed


@runtime_checkable
class ChoosesAdapters(Protocol):
    """Settings of a policy whose other settings decide which layers get low-rank adapters."""

    def lora_targets(self) -> tuple[str, ...]:
        """Return the default of `lora.targets`: `LORA_TARGETS`, less the layers that no loss
        reaches.
        """


@runtime_checkable
class Deviates(Protocol):
    """Settings of a policy whose training elsewhere differs from a run with its defaults."""

    def deviation(self, steps: int) -> str:
        """Return the difference of a run of `steps` to the training that `run_defaults` takes its
        values from.

        It is a line at the start of the run; "": none.
        """
