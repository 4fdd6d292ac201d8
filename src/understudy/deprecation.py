"""Old public names, which work for one release and warn."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that `old` is called `new` now and goes with the next release."""
    warnings.warn(f"{old} is now {new}; the old name goes with version 0.3", DeprecationWarning, stacklevel=stacklevel)


def renamed_attribute(old: str, new: str) -> Any:
    """Property that reads and writes an attribute by its old name, in the body of its class."""

    def read(self: Any) -> Any:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warn_renamed(f"{type(self).__name__}.{old}", new)
        setattr(self, new, value)

    return property(read, write)


def renamed_arguments(**renamed: str) -> Callable[[F], F]:
    """Accept the old names of keyword arguments: `@renamed_arguments(threads="num_threads")`.

    Raises:
        TypeError: an argument is given under both names.
    """

    def decorate(function: F) -> F:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old in renamed.keys() & kwargs.keys():
                new = renamed[old]
                if new in kwargs:
                    raise TypeError(f"{name}() got {new!r} and its old name {old!r}")
                warn_renamed(f"{name}({old}=)", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def renamed_fields(**renamed: str) -> Callable[[type[C]], type[C]]:
    """Accept the old names of a dataclass's fields as arguments: `@renamed_fields(threads="num_threads")`."""

    def decorate(cls: type[C]) -> type[C]:
        cls.__init__ = renamed_arguments(**renamed)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate
