"""examples/notebooks: each runs from the first to the last cell, offline, in a kernel of its
own.
"""

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra test")
nbclient = pytest.importorskip("nbclient", reason="needs the extra test")
pytest.importorskip("ipykernel", reason="needs the extra test")
pytest.importorskip("mujoco", reason="needs the extra demo")

FOLDER = Path(__file__).parents[2] / "examples/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def own_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel of this interpreter, which finds these sources, and leaves nothing outside of
    `tmp_path`.
    """
    for name, folder in {
        "TMPDIR": "made",
        "IPYTHONDIR": "ipython",
        "JUPYTER_RUNTIME_DIR": "runtime",
    }.items():
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


def outputs(cell: object, kind: str) -> list[str]:
    """Texts of the outputs of a cell: of a stream, or of displayed data of a type."""
    found = [
        out
        for out in cell.get("outputs", [])
        if out.get("name") == kind or kind in out.get("data", {})
    ]  # type: ignore[attr-defined]
    return [out["text"] if "text" in out else out["data"][kind] for out in found]


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    if kept := os.environ.get("UNDERSTUDY_KEEP_NOTEBOOKS"):
        nbformat.write(notebook, Path(kept, path.name))  # to look at
    printed = "".join(text for cell in notebook.cells for text in outputs(cell, "stdout"))
    assert "equal images: True" in printed
    assert "(8, 4) float32" in printed
    assert sum(len(outputs(cell, "image/png")) for cell in notebook.cells) == 4
    [training] = [cell for cell in notebook.cells if "us.train(" in cell.source]
    bars = [text for text in outputs(training, "text/plain") if text]
    assert len(bars) == 1
    assert "120/120" in bars[0]
    assert "\r" not in "".join(outputs(training, "stderr"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path: Path) -> None:
    """In git a notebook has its sources alone."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 5
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
