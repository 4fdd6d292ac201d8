"""All requirements: importing this module registers those of each subject."""

from understudy_conformance import (
    loader,
    reader,
    resume,
    sampler,
    seeds,
    statistics,
    weights,
    writer,
)
from understudy_conformance.requirement import (
    REQUIREMENTS,
    SUBJECTS,
    Factory,
    Requirement,
    Result,
    examine,
    select_requirements,
)

__all__ = [
    "REQUIREMENTS",
    "SUBJECTS",
    "Factory",
    "Requirement",
    "Result",
    "examine",
    "loader",
    "reader",
    "resume",
    "sampler",
    "seeds",
    "select_requirements",
    "statistics",
    "weights",
    "writer",
]
