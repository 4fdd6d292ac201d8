"""A policy of another package: behaviour cloning by regression, registered by an entry point, used
by everything.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from understudy.config.train import TrainConfig
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.inference import load_policy
from understudy.policies.losses import Loss, masked_squared_error, valid_elements
from understudy.policies.policy import Policy
from understudy.policies.registry import PolicyType, policy_type
from understudy.policies.settings import PolicySettings
from understudy.report.run.page import write_report
from understudy.report.run.tables import format_validation
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.startup_summary import describe_modes
from understudy_base import ACTION, STATE, ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import load, main, plain, validate
from understudy_robot.envs.env import Outcome, vector_feature
from understudy_robot.rollout.play import rollout

# -- the policy ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToySettings(PolicySettings):
    """Settings of the regression."""

    type: Literal["toy"] = "toy"
    hidden: int = 16


@dataclass(frozen=True)
class ToyConfig(ToySettings, PolicyConfig):
    """Config of the regression."""


class ToyPolicy(Policy):
    """Two linear layers from state and mean color to the chunk of actions, trained by squared
    error.
    """

    def __init__(self, config: ToyConfig, normalization: Any) -> None:
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(
            normalization, {ACTION: config.action_dim, STATE: config.state_dim}
        )
        self.hidden = nn.Linear(config.state_dim + 3 * len(config.cameras), config.hidden)
        self.out = nn.Linear(config.hidden, config.chunk * config.action_dim)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("regression",)

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "words": torch.tensor([len(text.split()) for text in batch["task"]])}

    def counts(self, batch: Any, draws: Any) -> dict[str, Tensor]:
        return {
            "regression": valid_elements(batch["action_is_pad"], 1, self.config.action_dim).sum()
        }

    def losses(
        self, batch: Any, draws: Any, terms: Any = None, detail: bool = False
    ) -> dict[str, Loss]:
        predicted = self._predict(batch)
        target = self.normalizer.actions(batch)
        return {
            "regression": masked_squared_error(
                predicted[:, None], target[:, None], batch["action_is_pad"]
            )
        }

    @torch.no_grad()
    def act(self, batch: Any, draws: Any, steps: int = 10, mode: str = "policy") -> Tensor:
        return self.normalizer.robot_actions(self._predict(batch), batch)

    def blocks(self) -> list[nn.Module]:
        return [self.hidden]

    def _predict(self, batch: Any) -> Tensor:
        assert len(batch["words"]) == len(batch["task"])  # `preprocess` ran
        colors = [batch[camera].float().mean(dim=(2, 3)) / 255 for camera in self.config.cameras]
        x = torch.cat([self.normalizer.states(batch, batch[STATE]), *colors], dim=1)
        return self.out(torch.relu(self.hidden(x))).view(
            -1, self.config.chunk, self.config.action_dim
        )


TOY = PolicyType(ToySettings, ToyPolicy, config=ToyConfig)

# -- its use ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The metadata of an installed package that registers the policy, on sys.path."""
    site = tmp_path_factory.mktemp("site")
    info = site / "toy_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[understudy.policies]\ntoy = toy_policy_package:TOY\n")
    module = type(sys)("toy_policy_package")
    module.TOY = TOY  # type: ignore[attr-defined]
    sys.path.insert(0, str(site))
    sys.modules["toy_policy_package"] = module
    yield
    sys.path.remove(str(site))
    del sys.modules["toy_policy_package"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("toy") / "dataset")


def config(data: Path, out: Path, **changes: Any) -> TrainConfig:
    return tiny_config(data, out, policy=ToySettings(image_size=(16, 16)), **changes)


@pytest.fixture(scope="module")
def trained(installed: None, data: Path) -> Path:
    """A whole run with validations, open-loop errors and checkpoints."""
    assert run.train(config(data, data.parent / "whole")) == run.DONE
    return data.parent / "whole"


def test_policy_type_finds_entry_points(installed: None) -> None:
    assert policy_type("toy") is TOY
    with pytest.raises(ValueError, match="toy"):
        policy_type("tov")


SUM = torch.ones(4)
COUNT = torch.full((4,), 6)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        ({"regression": (SUM, COUNT)}, "tuple"),
        ({"regression": [SUM, COUNT]}, "list"),
        ({"regression": None}, "a NoneType"),
        ({"regression": 1.5}, "a float"),
        ({"regression": SUM}, "[4]"),
        ({"regression": SUM.mean()}, "[]"),
        ({"regression": Loss(SUM.sum(), COUNT.sum())}, "Loss"),
        ({"regression": Loss(SUM, COUNT[:1])}, "[1]"),
        ({"regression": Loss(SUM, 6)}, "int"),  # type: ignore[arg-type]
        ({"other": Loss(SUM, COUNT)}, "no 'regression'"),
        (Loss(SUM, COUNT), "a Loss"),
        (SUM, "[4]"),
    ],
)
def test_losses_of_a_wrong_form_are_named(
    returned: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ToyPolicy.__new__(ToyPolicy)
    monkeypatch.setattr(ToyPolicy, "losses", lambda *_, **__: returned)
    with pytest.raises(ConfigError) as error:
        policy.sample_losses({}, {}, ("regression",))
    assert named in str(error.value)
    assert "ToyPolicy.losses" in str(error.value)


def test_a_mode_trains_the_terms_of_own_policies(installed: None) -> None:
    policy = ToyPolicy.__new__(ToyPolicy)
    shares = {"policy": 0.5, "forward_dynamics": 0.5}
    trained = {mode: policy.trained_terms(mode) for mode in shares}
    assert trained == dict.fromkeys(shares, ("regression",))
    assert describe_modes("joint", shares, terms=policy.loss_terms, trained=trained) == []
    assert describe_modes("joint", shares)  # flow and dynamics


def test_settings_of_another_type_are_read_written_and_checked(
    installed: None, tmp_path: Path
) -> None:
    read = validate(TrainConfig, {"policy": {"type": "toy", "hidden": 4}})
    assert read.policy == ToySettings(hidden=4)
    (tmp_path / "c.json").write_text(json.dumps(plain(read)))
    assert load(TrainConfig, tmp_path / "c.json").policy == ToySettings(hidden=4)
    with pytest.raises(ConfigError, match=r"policy\.width"):
        validate(TrainConfig, {"policy": {"type": "toy", "width": 4}})


def test_run_trains_and_validates_another_policy(trained: Path) -> None:
    losses = [record["loss"] for record in series(trained)]
    assert losses[-1] < losses[0]
    last = series(trained, "val")[-1]
    assert 0 < last["loss"] < np.inf
    assert last["open_loop"]["normalised"] > 0
    assert json.loads((trained / "policy/config.json").read_text())["type"] == "toy"


def test_run_resumes_another_policy(trained: Path, data: Path, tmp_path: Path) -> None:
    half = config(data, tmp_path / "r", steps=7)
    half = replace(half, schedule=replace(half.schedule, **{decay_field(half): 12}))
    assert run.train(half) == run.DONE
    assert run.resume(replace(half, steps=12)) == run.DONE
    assert series(tmp_path / "r") == series(trained)
    with pytest.raises(ConfigError, match="hidden"):
        run.resume(replace(half, steps=14, policy=ToySettings(image_size=(16, 16), hidden=8)))


def decay_field(made: TrainConfig) -> str:
    return "decay_steps" if hasattr(made.schedule, "decay_steps") else "steps"


def test_command_line_trains_another_policy(installed: None, data: Path, tmp_path: Path) -> None:
    asked = [
        "--data.root",
        str(data),
        "--steps",
        "2",
        "--policy.type",
        "toy",
        "--policy.hidden",
        "4",
    ]
    assert main(["train", *asked, "--output-dir", str(tmp_path / "r"), "--val.every", "0"]) == 0
    assert load_policy(tmp_path / "r").config.hidden == 4


def test_export_and_init_from_another_policy(trained: Path, data: Path, tmp_path: Path) -> None:
    assert main(["export", str(trained), "--output-dir", str(tmp_path / "export")]) == 0
    for file in ("config.json", "normalisation.json", "model.safetensors"):
        assert (tmp_path / "export" / file).read_bytes() == (trained / "policy" / file).read_bytes()
    assert (
        run.train(config(data, tmp_path / "next", steps=1, init_from=str(tmp_path / "export")))
        == run.DONE
    )
    other = tiny_config(data, tmp_path / "flow", init_from=str(tmp_path / "export"))
    with pytest.raises(ConfigError, match="type"):
        run.train(other)


def test_load_policy_acts_without_the_run(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "robot").mkdir()
    for file in (trained / "policy").iterdir():
        (tmp_path / "robot" / file.name).write_bytes(file.read_bytes())
    policy = load_policy(tmp_path / "robot")
    (camera,) = policy.metadata["cameras"]
    size = policy.config.state_dim
    observation = {
        STATE: np.zeros(size, np.float32),
        camera: np.zeros((24, 32, 3), np.uint8),
        "task": "pick",
    }
    actions = policy.act(observation)
    assert actions.shape == (3, policy.action_dim) == (3, len(policy.metadata["action_names"]))
    batch = {
        STATE: np.zeros((2, size)),
        camera: torch.zeros(2, 3, 24, 32, dtype=torch.uint8),
        "task": ["pick", "put"],
    }
    np.testing.assert_allclose(policy.act(batch)[0], actions, rtol=1e-5)
    with pytest.raises(ValueError, match=camera):
        policy.act({key: value for key, value in observation.items() if key != camera})
    with pytest.raises(ValueError, match="'task'"):
        policy.act({key: value for key, value in observation.items() if key != "task"})
    for state in (np.zeros(size - 1), np.zeros(size + 1), np.zeros((1, size))):
        with refused(STATE, size, kind=ValueError):
            policy.act(observation | {STATE: state})


class Reacher:
    """An environment of two numbers that move by the actions."""

    name = "reacher"
    fps = 10
    max_steps = 4
    episodes = 30
    one_scene = False
    noise = 0.1
    tasks = ("reach",)
    conditions: ClassVar[dict[str, str]] = {}
    features: ClassVar[dict[str, Any]] = {
        STATE: vector_feature(["x", "y"]),
        ACTION: vector_feature(["dx", "dy"]),
    }

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        self.place = np.zeros(2, np.float32)
        self.done = 0
        return {STATE: self.place}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        self.place = self.place + action
        self.done = self.done + 1
        return {STATE: self.place}, Outcome(None, self.done >= self.max_steps)

    def expert(self) -> np.ndarray:
        return np.zeros(2, np.float32)


def test_rollout_plays_another_policy(installed: None) -> None:
    unit = {"offset": [0.0] * 2, "spread": [1.0] * 2}
    policy = ToyPolicy(ToyConfig(2, 2, chunk=2), {ACTION: unit, STATE: unit})
    env = Reacher()
    result = rollout(policy, [env], 2, execute=2)
    assert [episode.steps for episode in result.episodes] == [env.max_steps] * 2


# -- one loss per batch ----------------------------------------------------------------------------


@pytest.fixture
def scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy returns the mean over the batch, and defines no `counts`."""

    def losses(self: ToyPolicy, batch: Any, *_: Any, **__: Any) -> dict[str, Tensor]:
        errors = (self._predict(batch) - self.normalizer.actions(batch)).square()
        return {"regression": errors[~batch["action_is_pad"]].mean()}

    monkeypatch.setattr(ToyPolicy, "scalar_losses", True)
    monkeypatch.setattr(ToyPolicy, "losses", losses)
    monkeypatch.setattr(ToyPolicy, "counts", Policy.counts)


def test_policy_with_a_loss_per_batch_trains_as_with_losses_per_sample(
    trained: Path, scalar: None, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Padding differs between the micro-batches, so a mean of their means is another loss."""
    with caplog.at_level("INFO", "understudy"):
        assert run.train(config(data, tmp_path / "r", micro_batch_size=1)) == run.DONE
    messages = [record.getMessage() for record in caplog.records]
    validations = [text for text in messages if text.startswith("validation at")]
    assert validations
    assert all("one loss per batch" in text for text in validations)
    # at the start
    assert [text for text in messages if "one loss per batch" in text and text not in validations]
    for kind in ("train", "val"):
        expected, found = (
            [record["loss"] for record in series(out, kind)] for out in (trained, tmp_path / "r")
        )
        assert found == pytest.approx(expected, rel=1e-3)
    last = series(tmp_path / "r", "val")[-1]
    before = series(trained, "val")[-1]
    assert last["scalar"]
    assert [list(last[kind]) for kind in ("heads", "sources", "tasks")] == [["all"]] * 3
    assert (last["samples"], last["elements"], last["se"]) == (
        before["samples"],
        before["elements"],
        None,
    )
    assert len(format_validation(last)) < len(format_validation(before))
    assert write_report(tmp_path / "r").exists()


def test_settings_that_need_losses_per_sample_are_refused(
    installed: None, scalar: None, data: Path, tmp_path: Path
) -> None:
    with refused("macro", "scalar_losses", kind=ConfigError):
        run.train(config(data, tmp_path / "best", checkpoint={"keep_best": "macro"}))
    made = config(data, tmp_path / "weighted")
    with refused("scalar_losses", "order", kind=ConfigError):
        run.train(
            replace(made, data=replace(made.data, frame_weights="index", frame_weights_in="loss"))
        )


@pytest.mark.parametrize("declared", [True, False])
def test_losses_of_another_form_than_declared_are_refused(
    installed: None,
    scalar: None,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    declared: bool,
) -> None:
    monkeypatch.setattr(ToyPolicy, "scalar_losses", declared)
    if declared:
        monkeypatch.setattr(
            ToyPolicy,
            "losses",
            lambda self, batch, *_, **__: {"regression": torch.ones(len(batch["task"]))},
        )
    else:
        monkeypatch.setattr(
            ToyPolicy,
            "counts",
            lambda self, batch, _: {"regression": torch.ones(len(batch["task"]))},
        )
    with refused("ToyPolicy", "'regression'", "scalar_losses", kind=ConfigError):
        run.train(config(data, tmp_path / "r", steps=1))


@pytest.mark.parametrize("hook", ["loss_terms", "counts", "losses", "act"])
def test_policy_without_a_needed_hook_is_refused_at_the_start(
    installed: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.delattr(ToyPolicy, hook)
    with refused("ToyPolicy", hook, kind=ConfigError):
        run.train(config(data, tmp_path / "r", steps=1))


def test_losses_without_a_named_term_are_refused(
    installed: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyPolicy, "losses", lambda *_, **__: {"other": torch.zeros(())})
    with refused("ToyPolicy", "'regression'", "'other'", kind=ConfigError):
        run.train(config(data, tmp_path / "r", steps=1))


def test_network_that_is_no_policy_is_refused(
    installed: None, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PolicyType, "build", lambda *_: torch.nn.Linear(1, 1))
    with refused("toy", "Linear", kind=ConfigError):
        run.train(config(data, tmp_path / "r", steps=1))
