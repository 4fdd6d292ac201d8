"""Types of policies by name, and the base classes of their settings and configs. No torch until one
is built.

A policy type has two dataclasses: its settings, derived from `PolicySettings`, and its config,
derived from these settings and `PolicyConfig`. A run writes the settings, the data add the facts,
and the config builds the network:

    @dataclass(frozen=True, kw_only=True)
    class MySettings(PolicySettings):
        type: Literal["mine"] = "mine"
        width: int = 64

    @dataclass(frozen=True, kw_only=True)
    class MyConfig(MySettings, PolicyConfig):
        pass

    MINE = PolicyType(MySettings, MyConfig, "my_package.model:MyPolicy")

The type in a file is `FILE.py:NAME` (`own_code`): `--policy.type my_policy.py:MINE`. An installed
package registers a type by an entry point of the group `understudy.policies`, named as the `type`:

    [project.entry-points."understudy.policies"]
    mine = "my_package:MINE"

A run stores such a type as `/path/FILE.py:NAME#SHA256`. Code is imported where this user named it
by hand alone (`own_code/types.py`), so a downloaded folder never brings code that is imported.
"""

import builtins
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from understudy.policies.own_code.types import import_type, is_code, name_by_hand, pin
from understudy_base import (
    ACTION,
    STATE,
    ConfigError,
    Record,
    UnderstudyError,
    find_entry_points,
    missing_distribution,
)
from understudy_data import Checksums

GROUP = "understudy.policies"
"""Group of the entry points."""

BUILT_IN = {
    "flow": "understudy.policies.flow.config:FLOW",
    "pi05": "understudy.policies.pi05.config:PI05",
    "pi0": "understudy.policies.pi05.config:PI0",
}
"""Types of this distribution as "module:name": they take precedence over entry points."""

ZOO = ("lerobot-act", "lerobot-diffusion", "lerobot-smolvla", "value", "value_pi05", "world_action")
"""Types of the distribution `zoo`, which registers them by entry points."""


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Settings of a policy; `type` selects the class, `flow` where a file names none."""

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

    FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that name a file or folder which the policy needs, "" for none -> files needed of a
    folder. Exported folders have copies (`policies/policy_folder.py`).
    """
    FORMATS: ClassVar[Mapping[str, str]] = {}
    """Names of other tools -> entry point of the group `understudy.folders`, a function that
    describes a policy as a folder of this tool (`folder_formats.py`).
    """
    GRAPH: ClassVar[str] = ""
    """Entry point of the group `understudy.graphs`, a function that makes the policy of a robot a
    function of tensors (`graph.py`); "" for none.
    """
    FOLDER: ClassVar[str] = ""
    """"module:function" that completes the config and the normalization of a folder from its other
    files, also of a folder that another tool wrote (`policy_folder.load`); "" for none.
    """
    START_CHECK: ClassVar[str] = ""
    """"module:function" that checks the config of a new run against the files it starts from; ""
    for none.
    """
    START_FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that name a folder from which a new run starts -> patterns of the files that are read
    there.
    """
    AT_START: ClassVar[tuple[str, ...]] = ()
    """Fields that matter only when a run starts."""
    RESIZE: ClassVar[str] = ""
    """Function, as "module:name", by which a loader resizes images where those of several sources
    differ in size. It writes an image uint8 [3, H, W] into `out`, uint8 [3, height, width], with
    the result of the policy's own resizing. "" is area averaging.
    """
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "mean_std"
    """Normalization by the data that this type expects: the default of `data.normalize`."""
    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """Loss terms that every sample of a run with mode `policy` trains, whatever its own mode is."""
    TORCH_ATTENTION: ClassVar[bool] = True
    """Whether the network may call `scaled_dot_product_attention`, whose kernel the setting
    `attention` names.
    """
    ACTS: ClassVar[bool] = True
    """Whether the policy predicts actions; a value function does not, and nothing plays, serves or
    compares it.
    """
    RESIZED: ClassVar[str] = "area"
    """Name of the way in which images are resized, for messages."""

    type: str = "flow"
    """Type of the policy."""
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

    def deviation(self, steps: int) -> str:
        """Return the difference of a run of `steps` to the training that `run_defaults` takes its
        values from.

        It is a line at the start of the run; "": none.
        """
        return ""

    def fitted(self, sizes: Mapping[str, tuple[int, int] | None]) -> Self:
        """Return the settings with those that follow from the recorded images.

        Args:
            sizes: camera -> (height, width); None where the dataset has no size.

        Raises:
            ConfigError: the sizes differ, or are not known, and this policy needs one.
        """
        return self

    def resize(self) -> Callable[[Any, Any], None] | None:
        """Return the function that `RESIZE` names; None: area averaging."""
        return imported(self.RESIZE) if self.RESIZE else None

    def images_ahead(self, chunk: int) -> tuple[int, ...]:
        """Return the frames ahead, 1 to `chunk`, of the future images that a run with a future also
        reads.

        Empty: none. Otherwise images have a dimension of time, the present first.
        """
        return ()

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

    @property
    def image_times(self) -> tuple[float, ...]:
        """Times of the frames of each camera that the policy sees, in seconds from the present,
        ascending, 0 last.

        Empty: the present alone, and images have no dimension of time.
        """
        return ()

    @property
    def state_times(self) -> tuple[float, ...]:
        """Times of the states that the policy sees, as `image_times`."""
        return ()

    @property
    def past_steps(self) -> int:
        """Control steps before the present whose images and states the policy sees, in place of
        `image_times`.
        """
        return 0

    def seen_times(self, fps: float | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the times of the images and of the states that the policy sees; () where it sees
        the present alone.

        Args:
            fps: control steps per second; None: unknown. Times that the policy counts in steps are
                then in steps.
        """
        if steps := self.past_steps:
            times = (*(-step / (fps or 1) for step in range(steps, 0, -1)), 0.0)
            return times, times
        return self.image_times, self.state_times

    def step_rate(self, fps: float | None, time: float | None = None) -> float | None:
        """Return the `fps` of the policy's `ObservationHistory`: 1 for times in steps
        (`seen_times`).

        Args:
            fps: control steps per second; None: unknown.
            time: time of an observation in seconds; None: it has none.

        Raises:
            ValueError: the observation has a `time`, and the times are in steps.
        """
        if fps is not None or not self.past_steps:
            return fps
        if time is not None:
            raise ValueError(
                f"time is {time}, and the policy names no frame rate; leave it out, and observe "
                "each step"
            )
        return 1.0

    def check_acts(self, folder: object) -> None:
        """Raise ValueError where the policy that a folder holds predicts no actions."""
        if not self.ACTS:
            fix = "`understudy score RUN DATA OUT` writes its figures into a dataset"
            raise ValueError(
                f"{folder} holds a policy of type {self.type}, which predicts no actions; {fix}"
            )

    @property
    def past_actions(self) -> int:
        """Actions before the present that training reads: `action` of a batch is [B, past_actions +
        T, A].
        """
        return 0

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """Default of `lora.targets` with these settings: `LORA_TARGETS`, less the layers that no
        loss reaches.
        """
        return self.LORA_TARGETS

    @property
    def learns_responses(self) -> bool:
        """Whether the policy learns to answer with the texts under `response`."""
        return False

    @property
    def return_target(self) -> Record:
        """Fields of `ReturnTarget` (`datasets/read/returns.py`) of a value function, whose batches
        then have `return`.

        Empty: the policy learns no returns.
        """
        return {}

    @property
    def text_vocabulary(self) -> int:
        """Ids that a tokenizer of texts may have; 0: the policy reads no such tokens."""
        return 0

    def tokenizer_texts(
        self, tasks: Sequence[str], responses: Sequence[str], state_dim: int
    ) -> list[str]:
        """Return all kinds of texts that the policy reads, to fit a tokenizer to.

        Args:
            tasks: instructions.
            responses: texts that the policy learns to answer with.
            state_dim: width of the state.
        """
        return []

    def problems(self) -> list[str]:
        """List the rules that the values break, one line `field: value: rule` each."""
        return []

    def resolved(self) -> Self:
        """Return the settings with absolute paths, so that they mean the same in another working
        directory.
        """
        paths = {}
        for name in self.FILES:
            if path := getattr(self, name):
                paths[name] = os.path.abspath(path)
        return replace(self, **paths)

    def started(self) -> Self:
        """Return the settings of a new run: with those that follow from the files it starts from.

        Raises:
            ConfigError: such a file is damaged.
        """
        return self

    def stored_chunk(self) -> int | None:
        """Return the actions per chunk of released weights that a run starts from; None: there are
        none.
        """
        return None

    def choose_normalization(self, computed: Record) -> Record:
        """Return the normalization of a new run: `computed` from its data, or that of weights it
        starts from.

        Raises:
            ValueError: these weights have none, or one of another robot.
        """
        return computed

    @property
    def figures_of_weights(self) -> str:
        """Weights whose own normalization `choose_normalization` returns; "": it is that of the
        data.
        """
        return ""

    def stored_name(self, name: str) -> str:
        """Return the name of a parameter in the model.safetensors of a saved policy; `load_weights`
        must accept it.
        """
        return name

    @classmethod
    def select(cls, values: Record) -> "builtins.type[PolicySettings]":
        """Return the settings class that `values` name by their `type`.

        Raises:
            ValueError: there is no such type.
        """
        return policy_type(pin(stored_type(values))).settings

    @staticmethod
    def stored_type(stored: Record) -> str:
        """Return the `type` of a stored config, also of one of LeRobot; see `stored_type`."""
        return stored_type(stored)

    @classmethod
    def by_hand(cls, word: str) -> str:
        """Return the type that a user names now, as it is stored, and trust its code from here on.

        Raises:
            ValueError: its file cannot be read, or is not the one of the given checksum.
        """
        return name_by_hand(word)

    @classmethod
    def is_same(cls, kind: str, stored: str) -> bool:
        """Return whether a stored type is `kind`, where both have the same settings class."""
        return not is_code(kind) or kind == pin(stored)

    @classmethod
    def types(cls) -> list[str]:
        """Return the names of all types, without importing one."""
        return type_names()

    @classmethod
    def types_with(cls, setting: str) -> list[str]:
        """Return the built-in types whose settings have a name, spelled as in a flag."""
        kinds = []
        for kind in own_type_names():
            settings = fields(policy_type(kind).settings)
            if setting in [entry.name.replace("_", "-") for entry in settings]:
                kinds.append(kind)
        return kinds

    @classmethod
    def from_mapping(cls, stored: Record) -> Self:
        """Read the fields of this class from JSON: lists become tuples; other keys are ignored."""
        names = {field.name for field in fields(cls)} - {"type"}
        values: dict[str, Any] = {}
        for name, value in stored.items():
            if name in names:
                values[name] = tuple(value) if isinstance(value, list) else value
        if is_code(stored_type(stored)):
            values["type"] = stored_type(stored)
        return cls(**values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Validate a field of this base class as the class that its `type` names."""
        if cls is not PolicySettings:
            return handler(source)
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any) -> PolicySettings:
            if isinstance(value, PolicySettings):
                value = asdict(value)
            if not isinstance(value, Mapping):
                raise PydanticCustomError("policy", "expected settings of a policy")
            try:
                kind = pin(stored_type(value))
                chosen: Any = cls.select({"type": kind})
            except ValueError as error:
                raise PydanticCustomError(
                    "policy_type", "{reason}", {"reason": str(error)}
                ) from error
            if not is_code(kind):
                checked: PolicySettings = _adapter(chosen).validate_python(dict(value))
                return checked
            settings = {name: item for name, item in value.items() if name != "type"}
            return replace(_adapter(chosen).validate_python(settings), type=kind)

        return core_schema.no_info_plain_validator_function(check)


@cache
def _adapter(cls: Any) -> Any:
    """Return pydantic's check of a class of settings, which takes longer to make than to use."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


@dataclass(frozen=True)
class PolicyConfig:
    """Facts of a run that every policy is built from; they follow from the data and from the run's
    settings.
    """

    action_dim: int
    """Width of an action; of several robots the widest."""
    state_dim: int = 0
    """Width of `observation.state`; 0: the policy has no state."""
    cameras: tuple[str, ...] = ()
    """Keys of the images, in the order of the network; empty: the policy has no images."""
    chunk: int = 8
    """Actions predicted at once (T)."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic; normalization and loss are always float32."""
    future: bool = False
    """Whether the run also trains on the states that follow each action of the chunk (task modes).
    """
    acts: bool = True
    """Whether the run trains mode `policy`, alone or next to others."""

    @property
    def widths(self) -> dict[str, int]:
        """Width of each vector that the policy normalizes, by key."""
        widths = {ACTION: self.action_dim}
        if self.state_dim:
            widths[STATE] = self.state_dim
        return widths

    def fact_problems(self) -> list[str]:
        """List the rules that these facts break, one line each."""
        problems = [
            f"{n}: {getattr(self, n)}: must be at least 1"
            for n in ("action_dim", "chunk")
            if getattr(self, n) < 1
        ]
        if self.state_dim < 0:
            problems.append(f"state_dim: {self.state_dim}: must be 0 (no state) or more")
        if self.future and not self.state_dim:
            problems.append("future: True: needs a state, and state_dim is 0")
        return problems


def check_start(config: Any) -> None:
    """Check the config of a new run against the files that it starts from, by its `START_CHECK`.

    Raises:
        ConfigError: they contradict each other; names both values. Or a file of the folder
            `weights` is not the one that was written.
    """
    weights = getattr(config, "weights", "")
    if weights and Path(weights).is_dir():
        try:
            Checksums(Path(weights)).check()
        except (OSError, UnderstudyError) as error:
            raise ConfigError(f"policy.weights: {error}") from error
    imported(config.START_CHECK)(config)


def folder_readers(kind: str | None) -> list[Callable[..., Any]]:
    """Return the functions `FOLDER` of a type, or with None those of all types of this project that
    are installed.

    Args:
        kind: name of the type.

    Raises:
        ValueError: there is no such type.
    """
    kinds = [kind] if kind is not None else own_type_names()
    names = dict.fromkeys(policy_type(name).settings.FOLDER for name in kinds)
    return [imported(name) for name in names if name]


def network_differences(first: Any, second: Any) -> list[str]:
    """List the fields, with both values, in which two configs describe different networks."""
    if type(first) is not type(second):
        return [f"type: {first.type} there, {second.type} here"]
    theirs, ours = (_flat(asdict(config)) for config in (first, second))
    ignored = {*first.RUN_ONLY, *first.AT_START, *first.FILES}
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


@dataclass(frozen=True)
class PolicyType:
    """One type of policy: its settings, its config, and the function that builds it."""

    settings: type[PolicySettings]
    """Settings that a run chooses."""
    config: type[Any]
    """Settings and facts of the data, derived from `settings` and `PolicyConfig`."""
    builder: str | Callable[[Any, Record], Any]
    """(config, normalization) -> policy with fresh float32 weights; as "module:name" it is imported
    when needed.
    """

    def build(self, config: Any, normalization: Record) -> Any:
        """Build the policy (`policies.policy.Policy`) with fresh weights from torch's generator.

        Raises:
            ValueError: the normalization does not fit the config.
        """
        make = imported(self.builder) if isinstance(self.builder, str) else self.builder
        return make(config, normalization)

    def make_config(self, settings: PolicySettings, **facts: Any) -> Any:
        """Join the settings of a run and the facts of its data."""
        return self.config(
            **{field.name: getattr(settings, field.name) for field in fields(settings)}, **facts
        )


def policy_type(name: str) -> PolicyType:
    """Return the type of this name; built-in types come first, then entry points.

    Raises:
        ValueError: there is no such type, or the entry point is not a `PolicyType`.
        EntryPointError: the entry point cannot be loaded.
        MissingExtraError: it is a type of the distribution `zoo`, which is not installed.
    """
    if is_code(str(name)):
        return import_type(name, PolicyType)
    if name in BUILT_IN:  # without a look at the installed packages
        built_in: PolicyType = imported(BUILT_IN[name])
        return built_in
    points = find_entry_points(GROUP)
    if name not in points:
        if name in ZOO:
            raise missing_distribution(f"the policy type {name!r}", "zoo")
        if str(name).endswith(".py"):
            raise ValueError(
                f"{name}: names no policy type of the file; give FILE.py:NAME, NAME = "
                "PolicyType(...)"
            )
        names = sorted({*type_names(), *ZOO})
        adapters = [adapter for adapter in (f"lerobot-{name}",) if adapter in names]
        close = adapters or get_close_matches(str(name), names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ValueError(f"no policy type {name!r}; {hint}")
    entry = points[name].load()
    if not isinstance(entry, PolicyType):
        kind = type(entry).__name__
        raise ValueError(
            f"policy type {name!r}: {points[name].target} is a {kind}, not a PolicyType"
        )
    return entry


def type_names() -> list[str]:
    """Return the names of all policy types that are installed, without importing one."""
    return sorted({*BUILT_IN, *find_entry_points(GROUP)})


def own_type_names() -> list[str]:
    """Return the names of the types of this project that are installed, without importing one."""
    points = find_entry_points(GROUP)
    return [*BUILT_IN, *(name for name in ZOO if name in points)]


def stored_type(stored: Record) -> str:
    """Return the `type` of a stored config; `flow` where there is none.

    LeRobot's folders have its own types: `act` is our `lerobot-act`, and `pi052` our `pi05`.

    Raises:
        ValueError: it is not a name.
    """
    name = stored.get("type", "flow")
    if not isinstance(name, str):
        raise ValueError(f"type: {name!r}: expected the name of a policy type")
    # LeRobot's folders name its own types. A type of another package with such a name takes
    # precedence.
    adapter = "pi05" if name == "pi052" else f"lerobot-{name}"
    is_of_lerobot = (
        "input_features" in stored and adapter in (*BUILT_IN, *ZOO) and name not in type_names()
    )
    return adapter if is_of_lerobot else name


def imported(target: str) -> Any:
    """Import the object that "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
