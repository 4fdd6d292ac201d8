"""Types of policies by name. No torch until one is built.

A policy type has two parts: its settings, a dataclass derived from `PolicySettings`, and its class,
derived from `Policy`. A run writes the settings, the data add the facts, and both together are the
config that builds the network:

    @dataclass(frozen=True, kw_only=True)
    class MySettings(PolicySettings):
        type: Literal["mine"] = "mine"
        width: int = 64

    MINE = PolicyType(MySettings, "my_package.model:MyPolicy")

The type in a file is `FILE.py:NAME` (`own_code`): `--policy.type my_policy.py:MINE`. An installed
package registers a type by an entry point of the group `understudy.policies`, named as the `type`:

    [project.entry-points."understudy.policies"]
    mine = "my_package:MINE"

A run stores such a type as `/path/FILE.py:NAME#SHA256`. Code is imported where this user named it
by hand alone (`own_code/types.py`), so a downloaded folder never brings code that is imported.
"""

import builtins
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, Self

from understudy.policies.capabilities import check_capabilities
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.own_code.types import import_type, is_code, name_by_hand, pin
from understudy_base import Record, find_entry_points, missing_distribution

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


@dataclass(frozen=True)
class PolicyType:
    """One type of policy: its settings, and its class."""

    settings: type[Any]
    """Settings that a run chooses, derived from `PolicySettings`."""
    policy: str | Callable[[Any, Record], Any]
    """Class of the policy, or function (config, normalization) -> policy with fresh float32
    weights; as "module:name" it is imported when needed.
    """
    config: type[Any] = field(default=PolicyConfig, kw_only=True)
    """Settings and facts of the data. One that does not derive from `settings` is joined with
    them.
    """

    def __post_init__(self) -> None:
        check_capabilities(self.settings)
        if not issubclass(self.config, self.settings):
            joined = _join(self.settings, self.config)  # type: ignore[arg-type]  # hashable
            object.__setattr__(self, "config", joined)

    def load(self) -> Any:
        """Return the class of the policy, or the function that builds it."""
        return imported(self.policy) if isinstance(self.policy, str) else self.policy

    def build(self, config: Any, normalization: Record) -> Any:
        """Build the policy (`policies.policy.Policy`) with fresh weights from torch's generator.

        Raises:
            ValueError: the normalization does not fit the config.
        """
        return self.load()(config, normalization)

    def make_config(self, settings: "ChosenByType", **facts: Any) -> Any:
        """Join the settings of a run and the facts of its data."""
        return self.config(
            **{entry.name: getattr(settings, entry.name) for entry in fields(settings)}, **facts
        )


@cache
def _join(settings: Any, facts: type[Any]) -> type[Any]:
    """Return the class of configs with these settings and facts: `settings.Config`, which pickle
    finds by this name.
    """
    names = {
        "__doc__": f"Config of a policy: `{settings.__name__}`, and the facts of the data.",
        "__module__": settings.__module__,
        "__qualname__": f"{settings.__qualname__}.Config",
    }
    settings.Config = dataclass(frozen=True)(type("Config", (settings, facts), names))
    joined: type[Any] = settings.Config
    return joined


@dataclass(frozen=True, kw_only=True)
class ChosenByType:
    """Base class of `PolicySettings`: a field of the latter holds the class that its `type` names.

    It is the `Union` of command lines and settings files (`understudy_kit.config.hooks`).
    """

    type: str = "flow"
    """Type of the policy."""

    @classmethod
    def select(cls, values: Record) -> "builtins.type[ChosenByType]":
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
        if ChosenByType not in cls.__bases__:
            return handler(source)
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any) -> ChosenByType:
            if isinstance(value, ChosenByType):
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
                checked: ChosenByType = _adapter(chosen).validate_python(dict(value))
                return checked
            settings = {name: item for name, item in value.items() if name != "type"}
            return replace(_adapter(chosen).validate_python(settings), type=kind)

        return core_schema.no_info_plain_validator_function(check)


@cache
def _adapter(cls: Any) -> Any:
    """Return pydantic's check of a class of settings, which takes longer to make than to use."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


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
