"""Only the command line and `keep_freed_memory` change the allocator of the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset

pytestmark = pytest.mark.long

SHIM = (
    "#include <unistd.h>\n"
    'int mallopt(int p, int v) { return p + v < 0 ? 1 : (int)write(2, "mallopt\\n", 8); }\n'
)
LOADER = """
import sys, understudy
data = understudy.EpisodeDataset(sys.argv[1])
loader = understudy.Loader([data], batch_size=2, num_threads=2, memory="200MB")
next(iter(loader))
loader.close()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which a program prints when it sets glibc's allocator."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and glibc")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c"], check=True
    )
    return {**os.environ, "LD_PRELOAD": str(folder / "shim.so"), "OMP_NUM_THREADS": "1"}


def sets_allocator(environment: dict[str, str], *command: str | Path) -> bool:
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    return "mallopt" in done.stderr


def test_loader_leaves_the_allocator_alone(environment: dict[str, str], tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", Spec(lengths=(6, 5)))
    assert not sets_allocator(environment, "-c", LOADER, tmp_path / "data")
    assert sets_allocator(
        environment,
        "-c",
        "import understudy; understudy.keep_freed_memory()" + LOADER,
        tmp_path / "data",
    )


def test_command_line_sets_the_allocator(environment: dict[str, str], tmp_path: Path) -> None:
    assert sets_allocator(environment, "-m", "understudy", "bench", tmp_path / "none")
    assert not sets_allocator(environment, "-m", "understudy", "order", "explain", "--help")
