"""Settings of all tests: one thread per process, no deadline on a busy machine, real recordings if
present.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are collected: their objects stay until the end
os.environ.setdefault("OMP_NUM_THREADS", "1")
# never the user's own cache
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="understudy-tests-")
# nor the user's own list of code
os.environ["XDG_CONFIG_HOME"] = os.path.join(os.environ["XDG_CACHE_HOME"], "config")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
if "SHARED_RUNS" not in os.environ:  # one folder for the workers of a session, see support/runs.py
    os.environ["SHARED_RUNS"] = tempfile.mkdtemp(prefix="understudy-runs-")
    atexit.register(shutil.rmtree, os.environ["SHARED_RUNS"], ignore_errors=True)
_REFUSED = "processes need torch 2.8"
# --hypothesis-profile=long: as `make test-long`
for _profile, _examples in (("short", 25), ("long", 100)):
    settings.register_profile(
        _profile,
        max_examples=_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("short")
if find_spec("tqdm"):  # a robot's computer has none
    from understudy_base import show_log

    show_log()
# Tests started in the background of a shell, or under nohup, ignore these signals, and so would
# their child processes. Some tests send them.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


HAS_TORCH = find_spec("torch") is not None
NO_TORCH = "No module named 'torch'"
_uncollected: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Leave out files that import torch, in an environment without it; `scripts/test-wheel` counts
    the others.
    """
    report = yield
    if report.failed and not HAS_TORCH and NO_TORCH in str(report.longrepr):
        _uncollected.append(collector.nodeid)
        report.outcome = "passed"
        report.result = []
        report.longrepr = None
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make the other parameters of a test with `short("ONE", ...)` long ones.

    Raises:
        pytest.UsageError: a test has none of the parameters that its marker names.
    """
    short: dict[str, bool] = {}
    for item in items:
        marker = item.get_closest_marker("short")
        if marker is None:
            continue
        test, _, parameters = item.nodeid.partition("[")
        is_short = parameters.removesuffix("]") in marker.args
        short[test] = short.get(test, False) or is_short
        if not is_short:
            item.add_marker("long")
    unknown = [test for test, is_there in short.items() if not is_there]
    if unknown and items[0].config.option.markexpr == "not long":
        raise pytest.UsageError(f"no parameters of the marker `short`: {', '.join(unknown)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave modules and tests, millions of objects, out of each search for garbage: a training run
    begins with one.
    """
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _uncollected:
        terminalreporter.write_line(
            f"not collected, for they import torch: {', '.join(sorted(_uncollected))}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Skip a test that fails for want of torch, or with the message of a run of several processes
    about an old one.
    """
    report = yield
    if report.failed and not HAS_TORCH and NO_TORCH in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: it needs torch")
        return report
    if report.failed and _REFUSED in "\n".join(
        [str(report.longrepr), *(text for _, text in report.sections)]
    ):
        from understudy.distributed.torch_release import has_gradient_sum

        if not has_gradient_sum():
            report.outcome = "skipped"
            report.longrepr = (
                str(item.path),
                0,
                "Skipped: a run of several processes needs torch 2.8",
            )
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("torch finds no GPU here")


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder with the real recordings; skips the test if there are none."""
    root = os.environ.get("UNDERSTUDY_TEST_DATA", "")
    if not root:
        pytest.skip("UNDERSTUDY_TEST_DATA is not set: no real recordings on this machine")
    if not Path(root).is_dir():
        pytest.fail(f"UNDERSTUDY_TEST_DATA={root} is not a folder")
    return Path(root)
