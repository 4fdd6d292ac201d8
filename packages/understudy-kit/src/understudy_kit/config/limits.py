"""Largest values that one machine may be asked for. A larger number is a typing mistake that could
stop the host.
"""

import os
from enum import Enum


class HostLimit(Enum):
    """Largest number on one machine: the first one, or the second per processor, whichever is
    larger.
    """

    THREADS = (16, 4)
    """Arithmetic threads."""
    LOADER_THREADS = (64, 8)
    PROCESSES = (64, 1)

    @property
    def largest(self) -> int:
        """The limit on this machine."""
        least, per_processor = self.value
        return max(least, per_processor * (os.cpu_count() or 1))

    def problems(self, name: str, value: int | str | None) -> list[str]:
        """Return one line if `value` is a number beyond the limit, else none.

        Args:
            name: of the setting.
            value: of the setting; a text, as `auto`, and None are within the limit.
        """
        if not isinstance(value, int) or value <= self.largest:
            return []
        return [
            f"{name}: {value}: at most {self.largest} on this machine, which has {os.cpu_count()} "
            "processors"
        ]
