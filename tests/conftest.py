"""Settings for every test: one thread per process, no deadline on a busy machine, real recordings where they are."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="understudy-tests-")  # never the user's own cache
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
settings.register_profile("understudy", deadline=None, print_blob=True)
settings.load_profile("understudy")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the real recordings; the test is skipped, with the reason, where there are none."""
    root = os.environ.get("UNDERSTUDY_TEST_DATA", "")
    if not root:
        pytest.skip("UNDERSTUDY_TEST_DATA is not set: no real recordings on this machine")
    if not Path(root).is_dir():
        pytest.fail(f"UNDERSTUDY_TEST_DATA={root} is not a folder")
    return Path(root)
