"""Message types of the topics in use, each parsed by `rosbags` from the definition that its topic
has.

A definition that cannot be parsed is a fault of the topics that need it, and of no other.
"""

import re
from typing import Any

from understudy_base import optional_imports, summarize
from understudy_tools.imports.bag_file import Topic
from understudy_tools.imports.bounds import require_size
from understudy_tools.imports.limits import MAX_METADATA, MAX_VALUES
from understudy_tools.imports.recording import RecordingError

_SEPARATOR = "=" * 80


class MessageTypes:
    """Types of a bag's topics.

    Args:
        distro: release of ROS 2 for topics without a definition, or "".
        is_ros1: whether messages are of ROS 1.
    """

    def __init__(self, distro: str, is_ros1: bool) -> None:
        with optional_imports():
            from rosbags.typesys import Stores, get_typestore

        self._is_ros1 = is_ros1
        self._release: Any = None
        if distro:
            releases = [
                of.value.removeprefix("ros2_") for of in Stores if of.value.startswith("ros2_")
            ]
            if distro not in releases:
                raise RecordingError(
                    "layout", f"ros_distro is {distro!r}, expected one of {', '.join(releases)}"
                )
            self._release = get_typestore(Stores(f"ros2_{distro}"))
        self._stores = dict[Topic, Any]()

    def store(self, topic: Topic) -> Any:
        """Return the typestore with the type of a topic.

        Raises:
            RecordingError: it has no type that can be read.
        """
        if topic not in self._stores:
            self._stores[topic] = self._make(topic)
        return self._stores[topic]

    def _make(self, topic: Topic) -> Any:
        from rosbags.typesys import Stores, get_typestore

        if topic.encoding:
            fix = (
                "read are CDR and definitions of ros2msg or ros2idl: leave the topic out of the "
                "mapping"
            )
            raise RecordingError(
                "unreadable", f"has messages of encoding {topic.encoding}", topic.name, fix=fix
            )
        is_in_release = self._release is not None and topic.kind in self._release.fielddefs
        if not topic.format:
            if is_in_release:
                return self._release
            problem = f"has no definition of its type {topic.kind}"
            fix = "`ros_distro` in the mapping names the release of ROS 2 whose types to use"
            if self._release is not None:
                fix = "this release does not have it: record with definitions, as MCAP does"
            raise RecordingError("unreadable", problem, topic.name, fix=fix)
        require_size(
            len(topic.definition), MAX_METADATA, f"the definition of {topic.kind}", topic.name
        )
        try:
            store = get_typestore(Stores.EMPTY)
            store.register(_parse(topic))
            if topic.kind not in store.fielddefs:
                raise ValueError(f"it defines {', '.join(store.fielddefs) or 'nothing'}")
            if missing := _missing(store.fielddefs, topic.kind):
                raise ValueError(f"it does not define {', '.join(sorted(missing))}")
            if (values := _values(store.fielddefs, topic.kind, {})) > MAX_VALUES:
                raise ValueError(
                    f"it declares {values:,} values in each message, the limit is {MAX_VALUES:,}"
                )
            if topic.digest:
                if self._is_ros1:
                    digest = store.generate_msgdef(topic.kind)[1]
                else:
                    digest = store.hash_rihs01(topic.kind)
                if digest != topic.digest:
                    raise ValueError(f"its hash is {digest}, the bag states {topic.digest}")
        except Exception as error:
            if is_in_release:
                return self._release
            problem = (
                f"has a definition of its type {topic.kind} that cannot be read: {summarize(error)}"
            )
            fix = "`ros_distro` in the mapping takes a type of ROS 2 from a release instead"
            raise RecordingError("unreadable", problem, topic.name, fix=fix) from error
        return store


def _parse(topic: Topic) -> dict[str, Any]:
    from rosbags.typesys import get_types_from_idl, get_types_from_msg

    text = clean(topic.definition)
    if topic.format == "msg":
        return dict(get_types_from_msg(text, topic.kind))
    if not text.startswith(f"{_SEPARATOR}\nIDL: "):
        return dict(get_types_from_idl(text))
    types = dict[str, Any]()
    for part in text.split(f"{_SEPARATOR}\n")[1:]:
        types.update(get_types_from_idl(part.partition("\n")[2]))
    return types


def _missing(definitions: Any, kind: str) -> set[str]:
    """Return the types that a type needs, and that are not defined."""
    seen = set[str]()
    left = [kind]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            for _, field in definitions.get(name, ((), ()))[1]:
                left += _names(field)
    return seen - definitions.keys()


def _names(field: Any) -> list[str]:
    """Return the names of types in a field: NAME is a type, arrays and sequences are of a field."""
    node, content = field
    if node.name == "NAME":
        return [content]
    return _names(content[0]) if node.name in ("ARRAY", "SEQUENCE") else []


def _values(definitions: Any, kind: str, counts: dict[str, int]) -> int:
    """Return the values of a message that are there in any case; an array of numbers is one."""
    if kind not in counts:
        counts[kind] = 1  # also where it is within itself
        counts[kind] += sum(
            _values_of(definitions, field, counts) for _, field in definitions[kind][1]
        )
    return counts[kind]


def _values_of(definitions: Any, field: Any, counts: dict[str, int]) -> int:
    node, content = field
    if node.name == "NAME":
        return _values(definitions, content, counts)
    if node.name == "ARRAY" and content[0][0].name == "NAME":
        return int(content[1]) * _values_of(definitions, content[0], counts)
    return 1


def clean(definition: str) -> str:
    """Return a definition with the line ends and separators that the parser knows.

    Writers end lines with CR LF, draw separators of other lengths, and glue one to the line before.
    """
    text = definition.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").rstrip("\0")
    return re.sub(r"[ \t]*\n*={3,}[ \t]*\n+(?=(?:MSG|IDL): )", f"\n{_SEPARATOR}\n", text).lstrip(
        "\n"
    )
