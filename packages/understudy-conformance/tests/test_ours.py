"""understudy meets all requirements: one user among others, through `adapters/ours.py`."""

import os
from pathlib import Path

import ours
import pytest

import understudy as us
from understudy_conformance.catalog import Factory, examine, select_requirements


@pytest.mark.parametrize(
    ("subject", "name", "skipped"),
    [
        ("reader", "reader", ""),
        ("writer", "writer", ""),
        ("sampler", "sampler", ""),
        ("loader", "loader", ""),
        ("resume", "resume", ""),
        ("seeds", "seeds", "R-SEED-03"),  # known by MODULE:FACTORY alone
        ("statistics", "statistics", ""),
        ("weights", "weights", ""),
        pytest.param("loader", "Stream", "R-LOAD-10", marks=pytest.mark.long),
        pytest.param("resume", "Stream", "", marks=pytest.mark.long),
        pytest.param("loader", "SamplerLoader", "R-LOAD-10", marks=pytest.mark.long),
        pytest.param("resume", "SamplerLoader", "", marks=pytest.mark.long),
    ],
)
def test_requirements(
    subject: str, name: str, skipped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in [name for name in os.environ if name in ("RANK", "WORLD_SIZE")]:
        monkeypatch.delenv(variable)
    factory = Factory(getattr(ours, name))
    results = [examine(requirement, factory) for requirement in select_requirements(subject)]
    assert {result.number: result.facts for result in results if result.status == "failed"} == {}
    assert [
        result.number for result in results if result.status == "not applicable"
    ] == skipped.split()


def test_neither_package_imports_the_other() -> None:
    source = Path(us.__file__).parent
    assert [
        path
        for path in source.rglob("*.py*")
        if "understudy_conformance" in path.read_text(errors="ignore")
    ] == []
    kit = Path(__file__).parents[1] / "src"
    imports = ("import understudy\n", "from understudy ", "from understudy.", "import understudy.")
    assert [
        path for path in kit.rglob("*.py") if any(text in path.read_text() for text in imports)
    ] == []
