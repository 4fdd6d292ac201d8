"""Plugin of pytest: `pytest --lerobot-conformance loader=MODULE:FACTORY` adds one test per
requirement.

Every session of pytest imports this module, so numpy and the requirements are imported where the
option is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from understudy_conformance.examination import Examination
    from understudy_conformance.requirement import Requirement

OPTION = "--lerobot-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("lerobot-conformance")
    text = "examine MODULE:FACTORY by the requirements of a subject; may be given several times"
    group.addoption(
        OPTION, action="append", default=[], metavar="SUBJECT=MODULE:FACTORY", help=text
    )
    group.addoption(
        f"{OPTION}-timeout", type=float, default=120, metavar="SECONDS", help="for one requirement"
    )


def pytest_collection(session: pytest.Session) -> None:
    """Refuse subjects that do not exist, before anything is collected."""
    for text in session.config.getoption(OPTION):
        from understudy_conformance.requirement import SUBJECTS

        subject, _, path = text.partition("=")
        if subject not in SUBJECTS or not path:
            raise pytest.UsageError(
                f"{OPTION} {text}: give SUBJECT=MODULE:FACTORY, of {', '.join(SUBJECTS)}"
            )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    session: pytest.Session, items: list[pytest.Item]
) -> Iterator[None]:
    """Add the tests behind all others."""
    for text in session.config.getoption(OPTION):
        from understudy_conformance.catalog import select_requirements
        from understudy_conformance.examination import Examination

        subject, _, path = text.partition("=")
        examination = Examination(path, session.config.getoption(f"{OPTION}-timeout"))
        session.config.add_cleanup(examination.close)
        parent: Any = _Subject.from_parent(session, name=text)
        for requirement in select_requirements(subject):
            item = _Item.from_parent(
                parent, name=requirement.number, requirement=requirement, examination=examination
            )
            items.append(item)
    yield


class _Subject(pytest.Collector):
    """A subject, under which its tests are listed."""

    def collect(self) -> list[pytest.Item]:
        return []


class _Item(pytest.Item):
    """The test of one requirement."""

    def __init__(
        self, *, requirement: "Requirement", examination: "Examination", **options: Any
    ) -> None:
        super().__init__(**options)
        self._requirement = requirement
        self._examination = examination

    def setup(self) -> None:
        """Examine here: a missing package is an error of the set-up, not a failure."""
        from understudy_conformance.requirement import FactoryError

        try:
            self._result = self._examination.examine(self._requirement)
        except FactoryError as error:
            pytest.fail(str(error), pytrace=False)

    def runtest(self) -> None:
        result = self._result
        if result.status == "not applicable":
            pytest.skip(result.facts)
        if result.status == "failed":
            raise _Failed(f"{result.number}  {self._requirement.sentence}\n{result.facts}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, _Failed):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[str, None, str]:
        return (
            self._requirement.number,
            None,
            f"{self._requirement.number}: {self._requirement.sentence}",
        )


class _Failed(Exception):
    """A requirement is not met."""
