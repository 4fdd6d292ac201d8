"""Policies with a history: batches with past frames and states, weights, and runs."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from safetensors.torch import save_file

from understudy.config.data import DataConfig
from understudy.config.train import AugmentConfig, TrainConfig
from understudy.policies.draws import generate_draws
from understudy.policies.inference import RobotPolicy
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.released_keys import WeightsError, released_key
from understudy.testing.pi05_policy import CAMERAS, batch, policy
from understudy.testing.runs import tiny_config
from understudy.testing.sentences import write_model
from understudy.train.augment_batch import shift_cameras
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.profiling.plan import one_sample, trace_step
from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import Spec, identity, write_dataset
from understudy_kit import SourceConfig

FRONT, WRIST = CAMERAS
STATE = "observation.state"
AGES = (0.2, 0.5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


def made(tokenizer: Path, **changes: Any) -> Pi05Policy:
    return policy(tokenizer, **{"history": AGES} | changes)


def with_past(given: dict[str, Any], states: bool = False, seed: int = 9) -> dict[str, Any]:
    """The batch with two past frames and states; sample 0 has none of them, sample 2 only the
    later.
    """
    draw = torch.Generator().manual_seed(seed)
    count = len(given["task"])
    is_pad = torch.zeros(count, 3, dtype=torch.bool)
    is_pad[0, :2] = is_pad[2, 0] = True
    found = dict(given)
    for camera in CAMERAS:
        past = torch.randint(
            0, 256, (count, 2, *given[camera].shape[1:]), dtype=torch.uint8, generator=draw
        )
        found[camera] = torch.cat([past, given[camera][:, None]], dim=1)
        found[f"{camera}_is_pad"] = (
            is_pad
            | given.get(f"{camera}_is_missing", torch.zeros(count, dtype=torch.bool))[:, None]
        )
    if states:
        past = torch.rand(count, 2, 2, generator=draw) * 2 - 1
        found[STATE], found[f"{STATE}_is_pad"] = (
            torch.cat([past, given[STATE][:, None]], dim=1),
            is_pad,
        )
    return found


def sums(net: Pi05Policy, given: dict[str, Any]) -> Tensor:
    """The flow loss of each sample."""
    ready = net.preprocess(given)
    draws = generate_draws(
        net.random_spec("train"), len(given["task"]), torch.Generator().manual_seed(3)
    )
    with torch.no_grad():
        return net.losses(ready, draws)["flow"].sum


def changed(one: Tensor, two: Tensor) -> list[bool]:
    return ((one - two).abs() > 1e-5 * one.abs()).tolist()


def test_past_frames_reach_the_loss_of_samples_that_have_them(tokenizer: Path) -> None:
    net = made(tokenizer)
    given = with_past(batch())
    found = sums(net, given)
    other = {**given, FRONT: given[FRONT].clone()}
    other[FRONT][:, 0] = 255 - other[FRONT][:, 0]
    assert changed(sums(net, other), found) == [False, True, False, True]
    assert torch.equal(sums(net, other)[[0, 2]], found[[0, 2]])
    blind = {**other, f"{WRIST}_is_pad": ~torch.tensor([False, False, True]).expand(4, 3)}
    # sample 1 lacks the wrist camera
    assert changed(sums(net, blind), sums(net, other)) == [False, False, True, True]
    # The frames are those of the ages, and a policy without a history takes none.
    aged = (sums(made(tokenizer, seed=2, history=ages), given) for ages in (AGES, (0.2, 5.0)))
    assert changed(*aged) == [False, True, False, True]
    with pytest.raises(ValueError, match=FRONT):
        sums(policy(tokenizer), given)
    with pytest.raises(ValueError, match=FRONT):
        sums(net, batch())
    with pytest.raises(ValueError, match=f"{FRONT}_is_pad"):
        sums(net, {key: value for key, value in given.items() if key != f"{FRONT}_is_pad"})


def test_ages_in_any_order_are_one_history(tokenizer: Path) -> None:
    nets = [made(tokenizer, history=ages) for ages in (AGES, AGES[::-1])]
    assert nets[0].past.images == nets[1].past.images == (-0.5, -0.2, 0.0)
    assert torch.equal(*(sums(net, with_past(batch())) for net in nets))


def test_samples_without_past_lose_as_without_history(tokenizer: Path) -> None:
    found = sums(made(tokenizer), with_past(batch()))
    plain = sums(policy(tokenizer), batch())
    assert changed(found, plain) == [False, True, True, True]


def test_weights_fit_with_and_without_history(tokenizer: Path, tmp_path: Path) -> None:
    plain = policy(tokenizer)
    net = made(tokenizer, seed=1)
    net.load_weights(plain.state_dict())
    assert all(map(torch.equal, plain.state_dict().values(), net.state_dict().values()))
    net.save(tmp_path / "saved")
    loaded = Pi05Policy.load(tmp_path / "saved")
    assert loaded.config.history == AGES
    assert torch.equal(sums(loaded, with_past(batch())), sums(net, with_past(batch())))


def test_states_over_time_are_tokens(tokenizer: Path) -> None:
    net = made(tokenizer, state_history=True, prompt="plain")
    given = with_past(batch(), states=True)
    ready = net.preprocess(given)
    assert ready[STATE].shape == (4, 2)
    assert torch.equal(net.preprocess(ready)[STATE], ready[STATE])  # twice is once
    stateless = made(tokenizer, prompt="plain")
    plain = stateless.tokens(stateless.preprocess(with_past(batch())))
    assert net.tokens(ready) == [
        past + count for past, count in zip((1, 3, 2, 3), plain, strict=True)
    ]
    found = sums(net, given)
    other = {**given, STATE: given[STATE].clone()}
    other[STATE][:, 0] += 0.5
    assert changed(sums(net, other), found) == [False, True, False, True]
    other[STATE] = torch.where(given[f"{STATE}_is_pad"][..., None], torch.nan, given[STATE])
    assert torch.equal(sums(net, other), found)
    other[STATE] = given[STATE].clone()
    other[STATE][:, 2] += 0.5  # the present one
    assert all(changed(sums(net, other), found))


def test_projection_of_states_is_fresh_where_a_released_file_lacks_it(
    tokenizer: Path, tmp_path: Path
) -> None:
    plain = {released_key(name): value for name, value in policy(tokenizer).state_dict().items()}
    path = tmp_path / "released.safetensors"
    save_file({key: value.clone() for key, value in plain.items()}, path)
    net = made(tokenizer, state_history=True)
    object.__setattr__(net.config, "weights", str(path))
    first = net.first_weights(seed=5)
    shape = net.proprio_history_proj.weight.shape
    assert first("proprio_history_proj.weight", 0, shape[0]).shape == shape
    assert torch.equal(first("projector.weight", 0, 3), plain[released_key("projector.weight")][:3])
    kept = {
        **plain,
        "proprio_history_proj.weight": torch.ones(shape),
        "proprio_history_proj.bias": torch.ones(shape[0]),
    }
    save_file({key: value.clone() for key, value in kept.items()}, path)
    assert torch.equal(
        net.first_weights(seed=5)("proprio_history_proj.weight", 0, 2), torch.ones(2, shape[1])
    )
    # a policy of its own must be whole
    with pytest.raises(ValueError, match="proprio_history_proj"):
        net.load_weights(plain)
    with pytest.raises(WeightsError, match="state_history"):
        policy(tokenizer).load_weights(kept)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"history": (0.0,)}, "history"),
        ({"history": (-1.0, 1.0)}, "history"),
        ({"history": (float("inf"),)}, "history"),
        ({"history": (1.0, 1.0)}, "history"),
        ({"state_history": True}, "state_history"),
        (
            {"history": (1.0,), "state_history": True, "state_dim": 0, "prompt": "plain"},
            "state_history",
        ),
    ],
)
def test_settings_that_make_no_history_are_errors(
    tokenizer: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named}: "):
        policy(tokenizer, **changes)


# -- robots ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the robot of `policy`, at 10 frames per second."""
    root = tmp_path_factory.mktemp("robot") / "data"
    write_dataset(root, Spec(lengths=(9, 8), cameras=CAMERAS, action_dim=3, state_dim=2))
    return root


def robot_of(net: Pi05Policy, cameras: tuple[str, ...] = CAMERAS) -> RobotPolicy:
    return RobotPolicy(net, {"heads": {"": {"fps": 10, "cameras": list(cameras)}}})


@pytest.mark.parametrize("by_time", [False, True], ids=["steps", "times"])
def test_robot_sees_the_past_of_training_to_the_bit(
    tokenizer: Path, episodes: Path, by_time: bool
) -> None:
    """Every step of recorded episodes, through the loader's windows and through `observe` and
    `act`.
    """
    net = made(tokenizer, history=(0.2, 0.5), state_history=True).eval()
    times = list(net.past.images)
    recorded = EpisodeDataset(episodes, delta_timestamps=dict.fromkeys((*CAMERAS, STATE), times))
    plain = EpisodeDataset(episodes)
    robot = robot_of(net)
    for episode, length in enumerate((9, 8)):
        robot.reset()
        for frame in range(length):
            one = plain.sample(episode, frame)
            observation = {key: one[key] for key in (*CAMERAS, STATE, "task")}
            clock = {"time": 3.0 + frame / 10} if by_time else {}
            if frame % 3 == 1:
                robot.observe(observation, **clock)
                continue
            found = robot.act(
                observation, steps=2, generator=torch.Generator().manual_seed(frame), **clock
            )
            given = recorded.batch(np.array([episode]), np.array([frame]))
            draws = generate_draws(net.random_spec("act"), 1, torch.Generator().manual_seed(frame))
            ready = net.preprocess(
                {key: given[key] for key in given if key.startswith("observation")}
                | {"task": given["task"]}
            )
            assert np.array_equal(found, net.act(ready, draws, steps=2)[0].numpy())
    # Control: an episode that is not reset sees frames of the last one.
    one = plain.sample(0, 0)
    observation = {key: one[key] for key in (*CAMERAS, STATE, "task")}
    clock = {"time": 3.9} if by_time else {}
    late = robot.act(observation, generator=torch.Generator().manual_seed(0), **clock)
    robot.reset()
    first = robot.act(observation, generator=torch.Generator().manual_seed(0))
    assert not np.allclose(late, first, rtol=1e-4)


def test_rows_of_a_batch_have_their_own_past(tokenizer: Path) -> None:
    net = made(tokenizer).eval()
    together = robot_of(net)
    alone = robot_of(net)
    steps = [batch(3, seed=seed) for seed in range(3)]
    keys = (*CAMERAS, STATE, "task")
    noise = torch.Generator
    together.reset()
    found = [
        together.act({key: step[key] for key in keys}, steps=2, generator=noise().manual_seed(1))
        for step in steps
    ]
    alone.reset()
    for step in steps[:2]:
        alone.observe({key: step[key][1] for key in keys})
    with refused("reset", 3, 1, kind=ValueError):  # other rows than before
        alone.act({key: steps[2][key] for key in keys})
    alone.reset()
    for step in steps:
        rows = {key: [step[key][1]] * 3 if key == "task" else step[key][[1, 1, 1]] for key in keys}
        last = alone.act(rows, steps=2, generator=noise().manual_seed(1))
    np.testing.assert_allclose(last[1], found[2][1], rtol=1e-4, atol=1e-5)


def test_a_refused_call_adds_no_observation(tokenizer: Path) -> None:
    """Each refusal leaves the past as it was, so the call can be repeated."""
    net = made(tokenizer).eval()
    robot = robot_of(net)
    plain = robot_of(net)
    steps = [
        {key: given[key][0] for key in (*CAMERAS, STATE, "task")}
        for given in (batch(1, seed=i) for i in range(4))
    ]
    wrong: list[tuple[dict[str, Any], tuple[object, ...]]] = [
        ({"previous": np.zeros((2, 9))}, ("previous", "(2, 9)")),  # another width
        ({"previous": np.full((2, 3), np.nan)}, ("previous",)),
        # refused by the network
        ({"previous": np.zeros((2, 3)), "delay": 3, "horizon": 3}, ("delay", 3, "horizon")),
        ({"previous": np.zeros((2, 3)), "delay": 1}, ("delay", 1)),
        ({"time": 1.0}, ("time", 1.0)),
    ]
    for made_robot in (robot, plain):
        made_robot.reset()
        made_robot.observe(steps[0])
        made_robot.observe(steps[1])
    for arguments, named in wrong:
        with refused(*named, kind=ValueError):
            robot.act(steps[2], **arguments)
    other = {**steps[2], WRIST: torch.zeros(3, 5, 5, dtype=torch.uint8)}
    for call in (robot.act, robot.observe):
        with pytest.raises(ValueError, match=WRIST):
            call(other)
    for step in steps[2:]:
        one, two = (
            each.act(step, steps=2, generator=torch.Generator().manual_seed(0))
            for each in (robot, plain)
        )
        assert np.array_equal(one, two)


def test_robot_observes_again_after_a_pause(tokenizer: Path) -> None:
    """`observe` needs no window: it fills the past until `act` sees frames of all ages again."""
    robot = robot_of(made(tokenizer).eval())
    given = batch(1)
    observation = {key: given[key][0] for key in (*CAMERAS, STATE, "task")}
    robot.reset()
    for time in (0.0, 5.0):
        robot.observe(observation, time=time)
    with refused("observe", "reset", kind=ValueError):
        robot.act(observation, time=5.1)
    for time in (5.1, 5.2, 5.3, 5.4):
        robot.observe(observation, time=time)
    assert np.isfinite(robot.act(observation, time=5.5)).all()


def test_robot_without_a_camera_has_no_past_of_it(tokenizer: Path) -> None:
    net = made(tokenizer).eval()
    robot = robot_of(net, (FRONT,))
    given = batch(1)
    observation = {FRONT: given[FRONT][0], STATE: given[STATE][0], "task": "push"}
    robot.reset()
    robot.observe(observation)
    assert np.isfinite(robot.act(observation)).all()
    with pytest.raises(ValueError, match=WRIST):
        robot_of(net).act(observation)


def test_robot_must_reset_before_the_first_episode(tokenizer: Path) -> None:
    given = batch(1)
    observation = {key: given[key][0] for key in (*CAMERAS, STATE, "task")}
    robot = robot_of(made(tokenizer))
    for call in (robot.act, robot.observe):
        with refused("reset", kind=ValueError):
            call(observation)
    plain = robot_of(policy(tokenizer).eval())  # needs none of it
    plain.observe(observation)
    one = plain.act(observation, time=1.0, generator=torch.Generator().manual_seed(0))
    plain.reset()
    assert np.array_equal(plain.act(observation, generator=torch.Generator().manual_seed(0)), one)


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tok/, and recordings at 10 and 5 frames per second: ten/, five/."""
    folder = tmp_path_factory.mktemp("history")
    lengths = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12)
    write_dataset(folder / "ten", Spec(lengths=lengths, gop=4, per_video_file=4))
    write_dataset(folder / "five", Spec(lengths=lengths[:4], gop=4, fps=5))
    write_model(folder / "tok")
    return folder


def config(files: Path, out: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "size": "tiny",
        "tokenizer": str(files / "tok"),
        "prompt_tokens": 64,
    }
    settings |= {"history": (0.2, 0.4), "state_history": True} | changes.pop("policy", {})
    return tiny_config(files / "ten", out, policy=Pi05Settings(**settings), **changes)


def mixture(files: Path, out: Path, ages: tuple[float, ...]) -> TrainConfig:
    sources = tuple(SourceConfig(root=str(files / name)) for name in ("ten", "five"))
    made = config(files, out, policy={"history": ages})
    return replace(made, data=DataConfig(sources=sources, chunk_size=3, val_fraction=0.3))


def test_sources_with_other_frame_rates_share_ages_in_seconds(files: Path, tmp_path: Path) -> None:
    config = mixture(files, tmp_path, (0.2, 0.4))
    data = open_data(config)
    top = "observation.images.top"
    seen = set()
    with Loader(data.training, order=data.order(config), num_threads=1) as loader:
        for batch, _ in zip(loader, range(8)):
            for row, source in enumerate(batch["source"].tolist()):
                episode = int(batch["episode_index"][row])
                frame = int(batch["frame_index"][row])
                steps = [4, 2, 0] if data.names[source] == "ten" else [2, 1, 0]
                wanted = [(0, episode, max(0, frame - step)) for step in steps]
                assert [identity(image.numpy()) for image in batch[top][row]] == wanted
                for key in (top, STATE):
                    assert batch[f"{key}_is_pad"][row].tolist() == [frame < step for step in steps]
                assert batch[STATE].shape[1] == 3
                seen.add((source, frame < steps[0]))
    assert len(seen) == 4  # both sources, with and without the whole past
    with pytest.raises(DatasetError, match=r"0\.3"):
        open_data(mixture(files, tmp_path, (0.3,)))


@pytest.mark.long
def test_plan_counts_the_past(files: Path, tmp_path: Path) -> None:
    """The activations of the vision encoder grow with the frames; weights and state do not."""
    found = []
    for ages in ((), (0.1, 0.2, 0.3)):
        made = config(
            files, tmp_path, policy={"history": ages, "state_history": False}, batch_size=1
        ).resolved()
        data = open_data(made)
        found.append(
            trace_step(
                made, data, choose_normalization(made, data), one_sample(made, data), 1, "cpu", 1
            )
        )
    plain, past = found
    assert (plain.parameters, plain.tokens) == (past.parameters, past.tokens)
    assert plain.memory["optimizer state"] == past.memory["optimizer state"]
    assert past.memory["activations"] > 1.3 * plain.memory["activations"]


@dataclass(frozen=True, kw_only=True)
class Foresight(Pi05Settings):
    """Settings of a policy that also predicts the image behind a chunk."""

    ALWAYS: ClassVar[tuple[str, ...]] = ()

    def images_ahead(self, chunk: int) -> tuple[int, ...]:
        return (chunk,)


def test_a_key_has_no_window_of_past_and_future(files: Path, tmp_path: Path) -> None:
    """Each would overwrite the other, and other frames than the settings name would be trained
    on.
    """
    for mode in ("joint", {"policy": 1.0, "forward_dynamics": 1.0}):
        (states,) = config(files, tmp_path, mode=mode).problems()
        assert states.startswith("mode: ")
        assert "policy.history" in states
        assert not config(files, tmp_path, mode=mode, policy={"state_history": False}).problems()
        ahead = config(files, tmp_path, mode=mode)
        assert len(replace(ahead, policy=Foresight(**asdict(ahead.policy))).problems()) == 2
    assert not config(files, tmp_path).problems()
    assert not config(files, tmp_path, mode={"policy": 1.0, "forward_dynamics": 0.0}).problems()


def test_shifted_videos_shift_as_a_whole() -> None:
    images = torch.randint(
        0, 256, (3, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    batch = {"position": torch.arange(3), "top": images}
    plain = shift_cameras(batch, ("top",), AugmentConfig(shift=3), seed=1)["top"]
    video = shift_cameras(
        {**batch, "top": images[:, None].repeat(1, 2, 1, 1, 1)}, ("top",), AugmentConfig(shift=3), 1
    )
    assert not torch.equal(plain, images)
    assert torch.equal(video["top"], plain[:, None].repeat(1, 2, 1, 1, 1))
