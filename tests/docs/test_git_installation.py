"""Doors of the root, installed by pip from a git address into environments that have nothing else.

The address is that of a clone of this repository: what is not committed is not in it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from understudy_base import PIP_LINES
from understudy_data.testing.datasets import Spec, write_dataset

ROOT = Path(__file__).parents[2]
OURS = {"understudy-wheels", "understudy-base"}
PACKAGES = (
    "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
)
BATCH = """
import sys
from understudy_data.load.loader import Loader
with Loader(sys.argv[1], batch_size=4, seed=0) as loader:
    print(tuple(next(loader)["observation.images.top"].shape))
"""

pytestmark = pytest.mark.long


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def run(*words: str | Path, expected: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program as in a fresh shell, outside the repository."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        words, env=environment, cwd=tempfile.gettempdir(), capture_output=True, text=True
    )
    assert done.returncode == expected, done.stderr[-4000:]
    return done


class Place:
    """A new environment with one or more doors."""

    def __init__(self, folder: Path, address: str, doors: str) -> None:
        self.bin = folder / "bin"
        run(sys.executable, "-m", "venv", folder)
        # The constraint keeps torch to a CPU build where an index has one.
        wanted = f"understudy-wheels[{doors}] @ {address}"
        run(self.bin / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wanted)

    @property
    def packages(self) -> set[str]:
        """Names of its packages, without those of an empty environment."""
        found = json.loads(run(self.bin / "python", "-c", PACKAGES).stdout)
        return {name.lower().replace("_", "-") for name in found} - {"pip", "setuptools"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a clone on a web server: pip before 24.1 refuses `git+file:///PATH`."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or not a clone")
    folder = tmp_path_factory.mktemp("git")
    words = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "hatchling",
        "-d",
        str(folder / "files"),
    ]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no package index")
    run("git", "clone", "--quiet", "--bare", "--local", ROOT, folder / "clone.git")
    run("git", "-C", folder / "clone.git", "update-server-info")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    with server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"git+http://127.0.0.1:{server.server_port}/clone.git"
        server.shutdown()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", Spec(lengths=(6, 9, 4), foreign=False))
    return tmp_path / "data"


def test_tools_check_a_dataset_without_torch(address: str, tmp_path: Path, dataset: Path) -> None:
    place = Place(tmp_path / "place", address, "tools,hub")
    assert {"understudy-tools", "huggingface-hub"} < place.packages
    assert not {"torch", "understudy"} & place.packages
    assert "3 episodes" in run(place.bin / "understudy", "check", dataset).stdout
    done = run(place.bin / "understudy", "train", expected=2)
    assert PIP_LINES["understudy"] in done.stderr


def test_client_brings_four_packages(address: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", address, "client")
    needed = {"numpy", "msgspec", "msgpack", "websockets"}
    assert place.packages == OURS | {"understudy-client"} | needed
    run(place.bin / "python", "-c", "import understudy_client.client")


def test_loader_reads_a_batch(address: str, tmp_path: Path, dataset: Path) -> None:
    place = Place(tmp_path / "place", address, "loader")
    assert not {"understudy", "understudy-kit"} & place.packages
    assert run(place.bin / "python", "-c", BATCH, dataset).stdout.strip() == "(4, 3, 64, 64)"
