"""Requirements with their numbers, and the examination of one."""

import inspect
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from understudy_conformance.sets import BASES, DemoSet, root_of

Status = Literal["passed", "failed", "not applicable"]


class Violation(Exception):
    """The measured facts against a requirement."""


class NotApplicable(Exception):
    """Why a requirement does not concern a subject: it takes no such argument, or refuses such data
    with an error.
    """


class FactoryError(Exception):
    """The set-up is at fault: the factory cannot be imported, or its code needs a package that is
    missing.
    """


class Factory:
    """The function under test, called by name with those arguments that it takes.

    Args:
        function: of the user; see the package's README for its arguments.
        path: MODULE:FACTORY of it, for other processes.

    Attributes:
        kept: result of an expensive call, for other requirements.
    """

    def __init__(self, function: Callable[..., Any], path: str | None = None) -> None:
        parameters = inspect.signature(function).parameters.values()
        self._function = function
        self._any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self._names = {parameter.name for parameter in parameters}
        self._base: DemoSet | None = None
        self.path = path
        self.kept: Any = None

    def __call__(self, **arguments: Any) -> Any:
        """Call the function."""
        return self._function(
            **{name: value for name, value in arguments.items() if self._any or name in self._names}
        )

    def need(self, *names: str) -> None:
        """Raise NotApplicable unless the function takes these arguments."""
        for name in names:
            if not (self._any or name in self._names):
                raise NotApplicable(f"the factory takes no `{name}`")

    def base(self, read: Callable[[Any], Any], **arguments: Any) -> DemoSet:
        """Return the first of `BASES` from which `read` gets something without an error.

        Raises:
            Violation: `read` fails on all of them.
        """
        if self._base is not None:
            return self._base
        errors = []
        for demo in BASES:
            try:
                read(self(root=root_of(demo), **arguments))
            except Exception as error:  # any error of foreign code
                errors.append(f"{demo.version}: {describe_error(error)[:150]}")
            else:
                self._base = demo
                return demo
        raise Violation("; ".join(errors))


Check = Callable[[Factory], str]


@dataclass(frozen=True)
class Requirement:
    """One requirement.

    Attributes:
        number: such as R-READ-03.
        sentence: the rule.
        reason: why it exists.
        threads: public threads in which it went wrong.
        check: returns the measured facts, or raises Violation or NotApplicable.
    """

    number: str
    sentence: str
    reason: str
    threads: tuple[str, ...]
    check: Check

    @property
    def subject(self) -> str:
        """The key in `SUBJECTS` of this requirement."""
        return next(
            name for name, prefix in SUBJECTS.items() if self.number.startswith(f"R-{prefix}-")
        )


SUBJECTS = {
    "reader": "READ",
    "writer": "WRITE",
    "sampler": "SAMPLE",
    "loader": "LOAD",
    "resume": "RESUME",
    "seeds": "SEED",
    "statistics": "STAT",
    "weights": "WEIGHTS",
}
"""Subject -> the word in its numbers."""
REQUIREMENTS: dict[str, Requirement] = {}
"""Number -> requirement."""


def require(number: str, sentence: str, reason: str, *threads: str) -> Callable[[Check], Check]:
    """Register a check under its number."""

    def register(check: Check) -> Check:
        assert number not in REQUIREMENTS, number
        REQUIREMENTS[number] = Requirement(number, sentence, reason, threads, check)
        return check

    return register


@dataclass(frozen=True)
class Result:
    """Result of one requirement.

    Attributes:
        number: of the requirement.
        status: "passed", "failed" or "not applicable".
        facts: as measured, or why it does not apply.
        seconds: duration.
    """

    number: str
    status: Status
    facts: str
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with the sentence of the requirement."""
        return asdict(self) | {"sentence": REQUIREMENTS[self.number].sentence}


def select_requirements(subject: str) -> list[Requirement]:
    """Return the requirements of a subject by number."""
    numbers = sorted(
        number for number in REQUIREMENTS if number.startswith(f"R-{SUBJECTS[subject]}-")
    )
    return [REQUIREMENTS[number] for number in numbers]


def examine(requirement: Requirement, factory: Factory) -> Result:
    """Examine a factory in this process. Any error of its code is a failure.

    Raises:
        FactoryError: its code fails to import a package.
    """
    begin = time.monotonic()
    status = "passed"
    try:
        facts = requirement.check(factory)
    except NotApplicable as reason:
        status = "not applicable"
        facts = str(reason)
    except Violation as violation:
        status = "failed"
        facts = str(violation)
    except Exception as error:  # of foreign code
        status = "failed"
        facts = describe_error(error)
    seconds = round(time.monotonic() - begin, 3)
    return Result(requirement.number, status, facts, seconds)  # type: ignore[arg-type]


def describe_error(error: BaseException) -> str:
    """Return an error in one line; of an error that quotes a worker's traceback, the last line.

    Raises:
        FactoryError: it is, quotes or was raised from an ImportError.
    """
    if isinstance(error, FactoryError):
        raise error
    text = str(error)
    if "Traceback (most recent call last)" in text:
        line = text.strip().splitlines()[-1][:300]
    else:
        line = f"{type(error).__name__}: {' '.join(text.split())[:300]}".removesuffix(": ")
    require_packages(line)
    if error.__cause__ is not None:
        describe_error(error.__cause__)
    return line


def require_packages(line: str) -> None:
    """Raise FactoryError if an error's line has an ImportError."""
    if re.search(r"\b(ModuleNotFoundError|ImportError)\b", line):
        module = re.search(r"No module named '(\w+)", line)
        command = f"`pip install {module[1]}`, or " if module else ""
        raise FactoryError(
            f"{line}; {command}install the extra of the library that has the package"
        )


def list_places(places: list[tuple[int, int]]) -> str:
    """Return the first places (episode, frame) as text."""
    text = ", ".join(f"episode {episode} frame {frame}" for episode, frame in places[:3])
    return f"{text}, ..." if len(places) > 3 else text
