"""Commands that end early, as processes: by a signal at an import or a new folder, or without a
reader.
"""

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from understudy.testing.runs import tiny_config, tiny_dataset
from understudy_kit import dump_yaml
from understudy_tools.testing.processes import children

# A module that Python imports at its start: a signal at the first audit event (args[0] contains a
# text).
SITE = """
import os, sys

def hook(event, args):
    if hook.at and event == hook.at[0] and hook.at[1] in str(args[0]):
        hook.at = None
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))

hook.at = os.environ["SIGNAL_AT"].split()
sys.addaudithook(hook)
"""
COMMANDS = {
    "check": "check {data} --depth all",
    "check, processes": "check {data} --depth all --workers 2",
    "edit": "edit {data} out --gop 3",
    "order explain": "order explain {data} --batch-size 8",
    "order export": "order export {data} order.parquet --steps 1000000",
    "publish": "publish {data} out",
    "record": "record --output-dir out --episodes 400",
    "statistics": "statistics {settings}",
    "bench": "bench {data} --seconds 60",
    "plan": "plan {settings}",
    "train": "train {settings}",
}
QUICK = [
    *((name, "import understudy_kit.cli.arguments") for name in ("check", "train")),
    ("check", "import numpy"),
    ("edit", "os.mkdir videos"),
    ("publish", "os.mkdir draft/data"),
    ("record", "import mujoco"),
    ("record", "os.rename understudy-new/meta"),
]
SLOW = [
    ("check", "import understudy_tools.check.rules.videos"),
    ("check, processes", "import multiprocessing.popen_forkserver"),
    ("edit", "import pyarrow.parquet"),
    ("order explain", "import numpy"),
    ("order export", "import pyarrow.parquet"),
    ("statistics", "import numpy"),
    *((name, "import torch._tensor") for name in ("bench", "plan", "train")),
]
NOTES = ("plan:", "note:", "Svt[")
"""Lines of a command that has begun; the last is of an encoder that ends with an unfinished video.
"""
CODES = {"train": {signal.SIGTERM: 75, signal.SIGINT: 75}}
KEPT = {"record": {"out"}, "publish": {".data.versions", ".out.versions"}}
"""What a command continues, or removes at its next call."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("ends") / "data")


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    (tmp_path / "temporary").mkdir()
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    return os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary"), **more}


SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Each instant of `QUICK` has one of them in turn; the other one is long."""


@pytest.mark.parametrize(
    ("name", "instant", "number"),
    [
        *((*case, SIGNALS[place % 2]) for place, case in enumerate(QUICK)),
        *(
            pytest.param(*case, SIGNALS[1 - place % 2], marks=pytest.mark.long)
            for place, case in enumerate(QUICK)
        ),
        *(
            pytest.param(*case, number, marks=pytest.mark.long)
            for case, number in product(SLOW, SIGNALS)
        ),
    ],
)
def test_a_signal_ends_a_command_with_one_line_and_leaves_nothing(
    name: str, instant: str, number: signal.Signals, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "settings.yaml").write_text(
        dump_yaml(tiny_config(data, tmp_path / "here/run", steps=10**6))
    )
    words = COMMANDS[name].format(data=data, settings=tmp_path / "settings.yaml").split()
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "understudy", *words],
        cwd=tmp_path / "here",
        env=environment(tmp_path, SIGNAL_AT=instant, SIGNAL=str(int(number))),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == CODES.get(name, {}).get(number, 128 + number), done.stderr
    assert "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith(NOTES)][1:] == []
    assert {path.name for path in (tmp_path / "here").iterdir()} <= KEPT.get(name, set())
    assert list((tmp_path / "here").rglob("draft")) == []
    left = {path.name for path in (tmp_path / "temporary").iterdir()}
    # a cache of torch
    assert {name for name in left if not name.startswith("torchinductor_")} == set()
    assert children() == []


@pytest.mark.short("check")
@pytest.mark.parametrize(
    "words",
    [["--help"], ["check", "DATA"], ["order", "explain", "DATA", "--batch-size", "8"]],
    ids=lambda words: words[0],
)
def test_a_command_without_a_reader_fails_without_words(words: list[str], data: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "understudy",
        *(str(data) if word == "DATA" else word for word in words),
    ]
    ends = os.pipe()
    process = subprocess.Popen(command, stdout=ends[1], stderr=subprocess.PIPE, text=True)
    for end in ends:
        os.close(end)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 1
