"""Work beside a training that other packages add."""

import json
from pathlib import Path

import pytest

from understudy.testing.runs import SHORT, same_run, tiny_config, tiny_dataset, trained_run
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.run_hooks import open_hooks
from understudy_base import PIP_LINES, ConfigError, EntryPoint, MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_kit import override
from understudy_kit.testing.packages import install

HOOK = """
import json
from pathlib import Path
from understudy_base.errors import ConfigError

class Hook:
    @staticmethod
    def check(config, record):
        if config.seed == 13:
            raise ConfigError("seed: 13")

    def __init__(self, run, config, record, step, first):
        self.path, self.calls, self.left = run.root / "told.json", [["begin", step, first]], True

    def due(self, step):
        return step % 2 == 0

    def enqueue(self, step, policy, weights):
        self.calls.append(["take", step, len(weights) > 0])

    def poll(self, log, step, last=False):
        self.calls.append(["poll", step])
        return self.left

    def wait_until_done(self, log, mesh, stop):
        self.left = False
        self.calls.append(["wait"])
        return True

    def close(self):
        self.path.write_text(json.dumps([*self.calls, ["close"]]))
"""

FAILING = """
class Hook:
    @staticmethod
    def check(config, record):
        pass

    def __init__(self, run, config, record, step, first):
        raise RuntimeError("robot")
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tiny_dataset(tmp_path / "dataset")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "hooks-1", "[understudy.run_hooks]\nhook = toys_hooks:Hook\n", HOOK)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_a_hook_of_another_package_gets_the_weights_of_its_steps(
    hook: None, tmp_path: Path
) -> None:
    plain = trained_run(tmp_path / "plain", **SHORT)
    data = Path(RunDir(plain).settings().data.root)
    assert run.train(tiny_config(data, tmp_path / "r", **SHORT)) == run.DONE
    told = json.loads((tmp_path / "r/told.json").read_text())
    assert told[0] == ["begin", 0, True]
    assert [call for call in told if call[0] == "take"] == [["take", 2, True], ["take", 4, True]]
    assert told[-2:] == [["wait"], ["close"]]
    assert ["poll", 4] in told
    (tmp_path / "r/told.json").unlink()
    same_run(plain, tmp_path / "r")


def test_a_hook_may_refuse_the_settings(hook: None, data: Path, tmp_path: Path) -> None:
    with refused("seed", 13, kind=ConfigError):
        run.train(tiny_config(data, tmp_path / "r", seed=13, **SHORT))
    assert not (tmp_path / "r").exists()


def test_a_hook_that_fails_to_open_leaves_none_open(
    hook: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[understudy.run_hooks]\nlater = toys_failing:Hook\n"
    install(tmp_path / "site_of_another", "failing-1", text, FAILING)
    monkeypatch.syspath_prepend(str(tmp_path / "site_of_another"))
    root = tmp_path / "r"
    with refused("robot", kind=RuntimeError):
        open_hooks(RunDir(tmp_path), tiny_config(data, root, **SHORT), {}, 0, first=True)
    assert json.loads((tmp_path / "told.json").read_text()) == [["begin", 0, True], ["close"]]


def test_rollouts_without_their_package_are_refused_at_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(group: str) -> dict[str, EntryPoint]:
        return {}

    monkeypatch.setattr("understudy.train.run_hooks.find_entry_points", none)
    config = tiny_config(data, tmp_path / "r", **SHORT)
    with refused("rollout.every", PIP_LINES["robot"], kind=MissingExtraError):
        run.train(override(config, rollout={"every": 2, "action_steps": 3}))
    assert not (tmp_path / "r").exists()
    assert run.train(config) == run.DONE
