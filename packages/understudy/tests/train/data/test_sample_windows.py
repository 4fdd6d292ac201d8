"""Windows that a policy asks for: in the batches of a run with defaults, training and validation,
and not in `act`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

from understudy.config.train import TrainConfig
from understudy.policies import registry
from understudy.policies.capabilities.past import Past
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.inference import load_policy
from understudy.policies.losses import masked_squared_error, valid_elements
from understudy.policies.policy import Policy
from understudy.policies.registry import PolicyType
from understudy.policies.settings import PolicySettings
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.data.run_data import open_data
from understudy_base import ACTION, STATE, ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_kit import override

CHUNK = 3


@dataclass(frozen=True, kw_only=True)
class AheadSettings(PolicySettings):
    type: Literal["ahead"] = "ahead"
    answer: ClassVar[Callable[[int, Any], Any]] = lambda chunk, cameras: {STATE: range(chunk + 1)}

    def windows(self, chunk: int, cameras: Any) -> Any:
        return type(self).answer(chunk, cameras)


@dataclass(frozen=True)
class AheadConfig(AheadSettings, PolicyConfig):
    pass


class Ahead(Policy):
    """Predicts actions and next states from the present state; keeps the shapes of what it was
    given.
    """

    seen: ClassVar[set[tuple[Any, ...]]] = set()

    def __init__(self, config: AheadConfig, normalization: Any) -> None:
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(normalization, config.widths)
        self.out = nn.Linear(config.state_dim, config.chunk * config.action_dim)
        self.ahead = nn.Linear(config.state_dim, config.state_dim)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("regression", "next_state")

    def counts(self, batch: Any, draws: Any) -> Any:
        actions = valid_elements(batch["action_is_pad"], 1, self.config.action_dim)
        states = valid_elements(batch[f"{STATE}_is_pad"][:, 1:2], 1, self.config.state_dim)
        return {"regression": actions, "next_state": states}

    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        images = [tuple(batch[camera].shape[1:-3]) for camera in self.config.cameras]
        self.seen.add(("losses", self.training, tuple(batch[STATE].shape[1:-1]), *images))
        states = self.normalizer.states(batch, batch[STATE])
        actions = self._actions(batch, batch[STATE][:, 0])
        target = self.normalizer.actions(batch)
        moved = self.ahead(states[:, :1])
        return {
            "regression": masked_squared_error(
                actions[:, None], target[:, None], batch["action_is_pad"]
            ),
            "next_state": masked_squared_error(
                moved[:, None], states[:, None, 1:2], batch[f"{STATE}_is_pad"][:, 1:2]
            ),
        }

    @torch.no_grad()
    def act(self, batch: Any, draws: Any, steps: int = 10, mode: str = "policy") -> Any:
        images = [tuple(batch[camera].shape[1:-3]) for camera in self.config.cameras]
        self.seen.add(("act", self.training, tuple(batch[STATE].shape[1:-1]), *images))
        return self.normalizer.robot_actions(self._actions(batch, batch[STATE]), batch)

    def _actions(self, batch: Any, now: Any) -> Any:
        x = self.out(self.normalizer.states(batch, now))
        return x.view(-1, self.config.chunk, self.config.action_dim)


AHEAD = PolicyType(AheadSettings, Ahead, config=AheadConfig)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "ahead", f"{__name__}:AHEAD")
    monkeypatch.setattr(Ahead, "seen", set())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("windows") / "dataset")


def config(data: Path, out: Path, **changes: Any) -> TrainConfig:
    return tiny_config(data, out, policy=AheadSettings(image_size=(16, 16)), **changes)


def test_run_with_defaults_trains_on_the_next_state(data: Path, tmp_path: Path) -> None:
    assert run.train(config(data, tmp_path / "r")) == run.DONE
    ahead = (1 + CHUNK,)
    now = ()
    assert Ahead.seen == {
        ("losses", True, ahead, now),
        ("losses", False, ahead, now),
        ("act", False, now, now),
    }
    for kind in ("train", "val"):
        assert all("next_state" in record["terms"] for record in series(tmp_path / "r", kind))
    policy = load_policy(tmp_path / "r")
    (camera,) = policy.metadata["cameras"]
    observation = {
        STATE: np.zeros(policy.config.state_dim),
        camera: np.zeros((24, 32, 3), np.uint8),
        "task": "",
    }
    assert policy.act(observation).shape == (CHUNK, policy.config.action_dim)


def test_batches_have_the_states_that_follow(data: Path, tmp_path: Path) -> None:
    opened = open_data(config(data, tmp_path / "r").with_policy_defaults())
    recorded = EpisodeDataset(str(data), keys=[STATE])
    for part in (*opened.training, *(source.apart for source in opened.sources)):
        assert part is not None
        episode = int(part.episodes[0])
        length = int(
            part.catalog.episodes.lengths[part.catalog.episodes.rows_of(np.array([episode]))[0]]
        )
        for frame in (0, length - 2):
            batch = part.batch(np.array([episode]), np.array([frame]))
            frames = np.minimum(frame + np.arange(1 + CHUNK), length - 1)
            expected = recorded.batch(np.full(1 + CHUNK, episode), frames)[STATE]
            assert torch.equal(batch[STATE][0], expected)
            assert batch[f"{STATE}_is_pad"][0].tolist() == [
                frame + i >= length for i in range(1 + CHUNK)
            ]
            assert batch[ACTION].shape[1] == CHUNK


def test_images_that_follow_are_trained_and_not_acted_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = lambda chunk, cameras: {STATE: (0, 1), cameras[0]: np.array([0, 2, 5])}  # noqa: E731
    monkeypatch.setattr(AheadSettings, "answer", both)
    assert run.train(config(data, tmp_path / "r", steps=4)) == run.DONE
    assert Ahead.seen == {
        ("losses", True, (2,), (3,)),
        ("losses", False, (2,), (3,)),
        ("act", False, (), ()),
    }


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ([0, 1], ("[0, 1]",)),
        (None, ("None",)),
        ({"observation.stat": [0, 1]}, ("'observation.stat'", STATE)),
        ({ACTION: [0, 1]}, ("'action'", "data.chunk_size")),
        ({STATE: [0, 0.5]}, (0.5,)),
        ({STATE: [0, True]}, ("True",)),
        ({STATE: [0, "1"]}, ("'1'",)),
        ({STATE: "01"}, ("'01'",)),
        ({STATE: 1}, (1,)),
        ({STATE: [1, 2]}, (1,)),
        ({STATE: [-1, 0]}, (-1,)),
        ({STATE: [0, 2, 2]}, (2,)),
        ({STATE: [0, float("nan")]}, ("nan",)),
        ({STATE: []}, (STATE,)),
        ({STATE: range(10**9)}, (2**16 + 1,)),
    ],
)
def test_wrong_windows_are_refused_at_the_start(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, named: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(AheadSettings, "answer", lambda chunk, cameras: answer)
    with refused(
        "windows",
        "ahead",
        *(value for value in named if str(value)[0] not in "'[-"),
        kind=ConfigError,
    ) as e:
        run.train(config(data, tmp_path / "r"))
    assert all(str(value) in str(e.value) for value in named)


def test_windows_need_a_state(data: Path, tmp_path: Path) -> None:
    with refused("windows", STATE, "data.state", kind=ConfigError):
        run.train(override(config(data, tmp_path / "r"), data={"state": ""}))


@pytest.mark.parametrize(
    ("owner", "past", "word"),
    [
        ("state", Past(states=(-0.1, 0.0)), "history"),
        ("camera", Past(images=(-0.1, 0.0)), "history"),
    ],
)
def test_a_key_has_one_window(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    past: Past,
    word: str,
) -> None:
    monkeypatch.setattr(AheadSettings, "past", lambda self: past, raising=False)
    if owner == "camera":
        monkeypatch.setattr(AheadSettings, "answer", lambda chunk, cameras: {cameras[0]: (0, 1)})
    with refused("windows", word, kind=ConfigError):
        run.train(config(data, tmp_path / "r"))


def test_mode_and_windows_agree_or_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint = config(data, tmp_path / "r", mode="joint").with_policy_defaults()
    assert open_data(joint).training[0].windows[STATE] == 1 + CHUNK
    monkeypatch.setattr(AheadSettings, "answer", lambda chunk, cameras: {STATE: (0, 1)})
    with refused("windows", "mode", "joint", kind=ConfigError):
        open_data(joint)
