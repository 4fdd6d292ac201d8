"""Facts of a policy for which the files of LeRobot or openpi have no place: `understudy.json` in an
exported folder.

The other tools do not read this file. A fact that a tool's own files hold is not repeated here.

    delta       action dimensions that are differences to the state   (openpi)
    cameras     keys of the images, in the order of the network       (openpi)
    action_dim, state_dim   widths                                    (openpi)
    constant    state dimensions that were constant: each value of them is 0 to the network
    max_delay   most given actions that the policy learnt to continue
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from understudy.policies.common.lerobot_processors import read_object
from understudy_base import ConfigError

FOLDER_FACTS = "understudy.json"
"""Name of the file."""


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a folder; empty where it has no such file.

    Raises:
        ConfigError: the file is damaged, or has a fact that this version does not know.
    """
    path = folder / FOLDER_FACTS
    if not path.is_file():
        return {}
    facts = read_object(path)
    for name, value in facts.items():
        rule = _RULES.get(name)
        if rule is None:
            raise ConfigError(f"{path}: {name}: unknown; known are {', '.join(_RULES)}")
        if not rule[0](value):
            raise ConfigError(f"{path}: {name}: {value!r:.80}: must be {rule[1]}")
    return dict(facts)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_dims(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value)) and len(set(value)) == len(value)


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


_DIMS = (_are_dims, "a list of different dimensions")
_COUNT = (_is_count, "a whole number, 0 or more")
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "delta": _DIMS,
    "constant": _DIMS,
    "cameras": (_are_names, "a list of different keys"),
    "action_dim": _COUNT,
    "state_dim": _COUNT,
    "max_delay": _COUNT,
}
