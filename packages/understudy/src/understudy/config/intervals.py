"""Numbers of a training run's settings, by their bounds."""

from math import inf
from typing import Annotated

from understudy_kit import Interval

Count = Annotated[int, Interval(ge=1)]
Steps = Annotated[int, Interval(ge=1, le=10**12)]
Period = Annotated[int, Interval(ge=0, le=10**12)]
"""Steps between two of something; 0: never."""
Processes = Annotated[int, Interval(ge=1, le=2**20)]
"""Processes of a run."""
Samples = Annotated[int, Interval(ge=1, le=2**24)]
Share = Annotated[float, Interval(ge=0, le=1)]
Factor = Annotated[float, Interval(ge=0, lt=inf)]
