"""Origin of the numbers by which rules decide."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """Metadata of a module's number by which a rule reports something or spares it:
    `_TORN: Annotated[float, Threshold(…)] = 0.12`.

    `lab/benchmarks/thresholds.py` multiplies the number until its faults are no longer named, and
    until a sound dataset raises an alarm.

    Attributes:
        meaning: the measured value that the number is compared with, and its unit.
        fault: planted faults that the number finds (`lab/benchmarks/planted_faults.py`), separated
            by spaces.
    """

    meaning: str
    fault: str
