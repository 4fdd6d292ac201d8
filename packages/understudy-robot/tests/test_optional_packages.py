"""The core without extras, and the message about a missing extra.

Each test is a process of its own in which the packages of the extras (or torch, or pyarrow and av)
cannot be imported.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.testing.runs import tiny_dataset
from understudy_base import PIP_LINES, MissingExtraError, optional_packages, pip_line
from understudy_base.optional_packages import EXTRAS, INCLUDES, OWNERS
from understudy_kit.cli.main import COMMANDS

BLOCKER = """
import importlib, io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
BROUGHT = {"packaging", "botocore", "boto3", "aiobotocore", "tensorboard", "wandb", "trackio"}
BROUGHT |= {"torchcodec", "torchdata", "accelerate", "scipy", "pandas", "contourpy", "cycler"}
ALL = {module for modules in EXTRAS.values() for module in modules} | BROUGHT


def without(blocked: set[str], code: str, *arguments: object) -> Any:
    """Run `code` without some packages and return its last printed line, parsed as JSON."""
    program = BLOCKER.replace("BLOCKED", repr(blocked)) + code
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("extras") / "dataset")


def test_core_works_without_extras(data: Path, tmp_path: Path) -> None:
    code = """
import numpy as np, torch
import understudy as us
from torch.utils.data import DataLoader

root, out = sys.argv[1:]
found = us.EpisodeDataset(root, delta_timestamps={"action": [0, 0.1]})
order = us.Order.from_datasets([found], batch_size=4, seed=0)
with us.Loader([found], order=order) as loader:
    batch = next(loader)
sampler = us.EpisodeSampler(found, batch_size=4, seed=0)
pulled = next(iter(DataLoader(found, batch_size=4, sampler=sampler)))
streamed = next(iter(DataLoader(us.EpisodeStream([found], order=order), batch_size=None)))
camera = "observation.images.top"
same = [
    pulled[camera].shape == batch[camera].shape,
    bool((streamed[camera] == batch[camera]).all()),
]

features = {
    camera: {"dtype": "video", "shape": (32, 32, 3)},
    "action": {"dtype": "float32", "shape": (2,)},
}
with us.EpisodeWriter(out, fps=10, features=features, codec="libx264") as writer:
    for _ in range(3):
        frame = {camera: np.zeros((32, 32, 3), np.uint8), "action": np.zeros(2, np.float32)}
        writer.add_frame(frame, task="wait")
    writer.save_episode()

model = torch.nn.Linear(3, 3).to(torch.bfloat16)
optimizer = us.MasterWeights(torch.optim.AdamW(model.named_parameters(), lr=1e-3))
model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
optimizer.step()
catalog = us.Catalog.open(out)
names = set(us.__all__) - {"TrainConfig", "train", "RemotePolicy"}
print(json.dumps({
    "same": same, "report": catalog.report(), "episodes": len(catalog.episodes.lengths),
    "names": [hasattr(us, name) for name in names],
}))
"""
    printed = without(ALL, code, data, tmp_path / "written")
    assert printed["same"] == [True, True]
    assert printed["episodes"] == 1
    assert all(printed["names"])


def test_catalog_and_order_need_no_torch(data: Path) -> None:
    code = """
import understudy as us
catalog = us.Catalog.open(sys.argv[1])
catalog.report()
us.Order, us.RemoteOptions, us.DatasetError
print(json.dumps([len(catalog.episodes.lengths), "torch" in sys.modules]))
"""
    assert without(ALL | {"torch"}, code, data) == [10, False]


@pytest.mark.long
def test_policies_and_optimizers_need_no_reader() -> None:
    """Networks and training steps can be used with other data."""
    root = Path(__file__).parents[2] / "understudy/src/understudy"
    modules = sorted(root.rglob("*.py"))
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in modules]
    names = [name for name in names if name.split(".")[0] in ("policies", "optim")] + [
        "train.optimizer_step",
        "train.precision",
    ]
    code = """
for name in sys.argv[1:]:
    importlib.import_module(f"understudy.{name}")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} & BLOCKED)))
""".replace("BLOCKED", repr({"pyarrow", "av"} | ALL))
    assert len(names) > 20
    assert without({"pyarrow", "av"} | ALL, code, *names) == []


CALLS = """
calls, printed = json.loads(sys.argv[1]), []
from understudy_kit.cli import main as cli
for call in calls:
    with redirect_stderr(io.StringIO()) as err, redirect_stdout(io.StringIO()):
        try:
            code = cli.main(call)
        except SystemExit as end:  # help
            code = end.code
    printed.append([code, err.getvalue()])
print(json.dumps(printed))
"""


def test_one_line_installs_all_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next call would fail for the next extra."""
    monkeypatch.setattr(optional_packages, "_is_missing", lambda module: True)
    with pytest.raises(MissingExtraError) as raised:
        optional_packages.require("s3", "hub", "sim", "demo")
    line = "pip install 'understudy-data[s3,hub]' 'understudy-robot[sim]'"
    assert str(raised.value).endswith(line)


@pytest.mark.long
def test_commands_without_an_extra_need_none_of_them() -> None:
    calls = [[*command.split(), "--help"] for command in COMMANDS]
    for call, (code, said) in zip(calls, without(ALL, CALLS, json.dumps(calls)), strict=True):
        assert code == 0, (call, said)


def test_options_name_the_missing_extra_before_any_work(data: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    asked = {
        "demo": [["demo", "--output-dir", out], ["record", "--output-dir", out]],
        "sim": [["record", "--output-dir", out, "--env", "metaworld"]],
        "s3": [["check", "s3://bucket/data", "--json"]],
        "hub": [["check", "hf://datasets/someone/something", "--json"]],
        "remote": [["check", "http://127.0.0.1:9/data", "--json"]],
    }
    calls = [(extra, call) for extra, several in asked.items() for call in several]
    printed = without(ALL, CALLS, json.dumps([call for _, call in calls]))
    for (extra, call), (code, said) in zip(calls, printed, strict=True):
        assert code == 2, (call, said)
        assert pip_line(extra) in said, (call, said)
        assert said.count("\n") == 1, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_run_without_other_extras_has_its_report(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = "--steps 2 --batch-size 2 --data.chunk-size 2 --policy.width 8 --policy.layers 1"
    call = ["train", "--data.root", str(data), "--output-dir", str(out), *small.split()]
    [[code, said]] = without(ALL, CALLS, json.dumps([call]))
    assert code == 0, said
    assert (out / "policy").is_dir()
    assert (out / "report.html").is_file()


@pytest.mark.long
def test_serve_names_the_package_of_its_second_service(data: Path) -> None:
    call = ["serve", str(data), "--lerobot-port", "0"]
    hidden = """
import understudy_base as base
find = base.find_entry_points
base.find_entry_points = lambda group: {} if group == "understudy.services" else find(group)
"""
    [[code, printed]] = without(set(), hidden + CALLS, json.dumps([call]))
    assert code == 2
    assert printed.count("\n") == 1
    assert "pip install understudy-lerobot-service" in printed


def test_missing_package_of_no_extra_keeps_its_traceback() -> None:
    """A failing import of our own is a bug, not a missing extra."""
    code = (
        """
import understudy_robot.cli.record as tool
def broken(config: tool.RecordConfig):
    import nowhere_to_be_found
tool.record = broken
"""
        + CALLS
    )
    [[status, said]] = without(set(), code, json.dumps([["record", "--output-dir", "x"]]))
    assert status == 1
    assert "Traceback" in said


def test_extras_match_the_papers() -> None:
    spelt = {"rerun": "rerun-sdk", "libero": "hf-libero"}
    # its own extras install them
    spelt |= dict.fromkeys(("diffusers", "transformers", "num2words"), "lerobot")
    papers = Path(__file__).parents[2]
    doors = tomllib.loads((papers.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, modules in EXTRAS.items():
        owner = OWNERS[extra]
        optional = tomllib.loads((papers / owner / "pyproject.toml").read_text())["project"][
            "optional-dependencies"
        ]
        packages = {re.split(r"[<>=\[;]", wanted)[0] for wanted in optional[extra]}
        assert {spelt.get(module, module) for module in modules} <= packages
        included = re.findall(rf"{owner}\[([\w,]+)\]", " ".join(optional[extra]))
        assert sorted(",".join(included).split(",") if included else []) == sorted(
            INCLUDES.get(extra, ())
        )
        assert f"{owner}[{extra}] @ {{root:uri}}/packages/{owner}" in doors[extra]


def test_the_lines_of_distributions_name_doors_that_exist() -> None:
    root = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for line in PIP_LINES.values():
        door = re.fullmatch(
            rf"pip install '{root['name']}\[(\w+)\] @ git\+{root['urls']['Homepage']}'", line
        )
        assert door is not None
        assert door[1] in root["optional-dependencies"]


def test_a_package_that_asks_for_a_newer_numpy_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "1.26.4", "pyarrow": "26.0.0"}
    monkeypatch.setattr(optional_packages, "_version", lambda package: versions.get(package, ""))
    # as pyarrow 26 words it, without a name
    refusal = ImportError("pyarrow requires NumPy 2.0 or newer, found 1.26.4")
    line = str(optional_packages.describe_old_numpy(refusal))
    assert "numpy 1.26.4" in line
    assert "pyarrow 26.0.0" in line
    assert "pyarrow<26" in line
    named = ImportError("it requires NumPy 2", name="pyarrow.lib")
    assert str(optional_packages.describe_old_numpy(named)) == line
    # of any package compiled for numpy 2
    other = ImportError("numpy.core.multiarray failed to import")
    assert "pyarrow" not in str(optional_packages.describe_old_numpy(other))
    assert optional_packages.describe_old_numpy(ImportError("libarrow.so: cannot open")) is None
    versions["numpy"] = "2.3.0"
    assert optional_packages.describe_old_numpy(refusal) is None


def test_lerobot_on_an_old_python_names_the_python(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("no module", name="lerobot")
    monkeypatch.setattr(optional_packages, "_is_missing", lambda module: True)
    for python, named in (((3, 11), "3.11"), ((3, 12), "pip install 'understudy-zoo[lerobot]'")):
        info = SimpleNamespace(major=python[0], minor=python[1])
        monkeypatch.setattr(sys, "version_info", type("Version", (tuple,), vars(info))(python))
        assert named in str(optional_packages.describe_missing(missing))


@pytest.mark.long
def test_packages_that_tests_import_are_declared() -> None:
    """The remedy: list the package in the group `test` of pyproject.toml."""
    top = Path(__file__).parents[3]
    declared: set[str] = set()
    for file in (top / "pyproject.toml", *top.glob("packages/*/pyproject.toml")):
        papers = tomllib.loads(file.read_text(encoding="utf-8"))
        project = papers["project"]
        groups = [
            *project.get("optional-dependencies", {}).values(),
            *papers.get("dependency-groups", {}).values(),
        ]
        for lines in (project.get("dependencies", []), *groups):
            declared |= {distribution_name(line) for line in lines if isinstance(line, str)}
    undeclared: list[str] = []
    owners = metadata.packages_distributions()
    for file in [*(top / "tests").rglob("*.py"), *top.glob("packages/*/tests/**/*.py")]:
        for module in imported_at_once(file) & owners.keys():
            if declared.isdisjoint(map(distribution_name, owners[module])):
                undeclared.append(f"{file.relative_to(top)}: {module}")
    assert undeclared == []


def imported_at_once(file: Path) -> set[str]:
    """Packages that the import of a file imports, whatever is installed."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def distribution_name(requirement: str) -> str:
    """Normalized name at the beginning of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()
