"""A cache that drops its least recently used values once they outgrow a budget."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Reversible
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Values by key; iteration gives the keys, the least recently used first. Not safe in threads:
    use a lock.

    Args:
        capacity: Sum of the sizes of all values, in bytes or whatever `size` counts.
        size: Size of a value; it must not change while the value is cached.
        keep: Number of newest values that stay whatever their size.
    """

    def __init__(self, capacity: int, size: Callable[[V], int], keep: int = 0) -> None:
        self.capacity = capacity
        self.used = 0
        self._size = size
        self._keep = keep
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def items(self) -> Reversible[tuple[K, V]]:
        """Return keys and values, the least recently used first; no value counts as used by it."""
        return self._values.items()

    def get(self, key: K) -> V | None:
        """Return the value of `key` and mark it as used; None if it is not cached."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> list[V]:
        """Cache `value` as the newest, in place of an earlier value of `key`; return the values
        dropped for it.
        """
        self.pop(key)
        self._values[key] = value
        self.used += self._size(value)
        return self._shrink()

    def resize(self, capacity: int) -> list[V]:
        """Set the capacity; return the values dropped for it."""
        self.capacity = capacity
        return self._shrink()

    def _shrink(self) -> list[V]:
        dropped = []
        while self.used > self.capacity and len(self._values) > self._keep:
            oldest = self._values.popitem(last=False)[1]
            self.used -= self._size(oldest)
            dropped.append(oldest)
        return dropped

    def pop(self, key: K) -> V | None:
        """Remove and return the value of `key`; None if it is not cached."""
        value = self._values.pop(key, None)
        if value is not None:
            self.used -= self._size(value)
        return value

    def clear(self) -> list[V]:
        """Drop and return all values."""
        dropped = list(self._values.values())
        self._values.clear()
        self.used = 0
        return dropped
