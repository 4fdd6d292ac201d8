"""The profile of a step: the trained step itself is measured, the slowest rank decides, memory and
FLOPs counted.
"""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed.activation_checkpoint import apply_activation_checkpointing
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import scalar
from understudy.policies.registry import own_type_names
from understudy.report.step_profile import explain_difference, memory_table
from understudy.testing.killed import WORLD_ACTION, world_action_settings
from understudy.testing.pi05 import SMALL
from understudy.testing.policies import batch, draws, policy
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import tiny_config
from understudy.testing.sentences import write_model
from understudy.train import state
from understudy.train.optimizer_step import NULL
from understudy.train.profiling import profile as profiling
from understudy.train.profiling.data_sheets import peak_flops
from understudy.train.profiling.plan import count_flops
from understudy.train.profiling.profile import (
    OTHER,
    PHASES,
    PhaseTimer,
    Profile,
    RankProfile,
    combine,
    profile,
)
from understudy_kit.cli import main
from understudy_zoo.testing.lerobot_policies import small_settings, write_vlm
from understudy_zoo.value.config import Pi05ValueSettings, ValueSettings


def config_of(name: str, data: Path, out: Path) -> TrainConfig:
    """The tiny run, with a policy of each type of this package."""
    config = tiny_config(data, out, log={"every": 1})
    if name in ("pi05", "pi0"):
        pytest.importorskip("sentencepiece", reason="needs the extra pi05")
        from understudy.policies.pi05.config import Pi0Settings, Pi05Settings

        make = Pi05Settings if name == "pi05" else Pi0Settings
        sizes = {
            key: value
            for key, value in asdict(replace(SMALL, vocab=320)).items()
            if key != "adaptive"
        }
        files = write_model(data.parent)
        return replace(
            config, policy=make(network=json.dumps(sizes), tokenizer=str(files), prompt_tokens=80)
        )
    # the dataset has no outcomes
    returns: dict[str, Any] = {
        "returns": "timestamp",
        "discount": 0.0,
        "value_range": (0.0, 100.0),
        "bins": 5,
    }
    if name == "value_pi05":
        pytest.importorskip("sentencepiece", reason="needs the extra pi05")
        towers: dict[str, Any] = {
            "network": json.dumps(WORLD_ACTION),
            "tokenizer": str(write_model(data.parent)),
        }
        chosen = Pi05ValueSettings(**towers, **returns, prompt_tokens=80, normalization="data")
        return replace(config, policy=chosen)
    if name == "value":
        return replace(config, policy=ValueSettings(width=16, channels=8, blocks=1, **returns))
    if name == "world_action":
        pytest.importorskip("sentencepiece", reason="needs the extra pi05")
        return replace(config, policy=world_action_settings(write_model(data.parent)), mode="joint")
    if name.startswith("lerobot-"):
        pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")
        policy = small_settings(name)
        if name == "lerobot-smolvla":
            policy = replace(policy, vlm_model_name=str(write_vlm(data.parent / "vlm")))
        return replace(
            config, policy=policy, data=replace(config.data, chunk_size=policy.stored_chunk() or 3)
        )
    return config


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "flow" else pytest.mark.long) for n in own_type_names()],
)
def test_profile_measures_the_trained_step(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[Any] = []
    plain = state.TrainState.train_step

    def advance(self: state.TrainState, batch: Any, timer: Any = NULL) -> Any:
        timers.append(timer)
        return plain(self, batch, timer)

    monkeypatch.setattr(state.TrainState, "train_step", advance)
    found = profile(config_of(name, data, tmp_path / "run"), warmup=1, steps=1)
    assert found is not None
    # warm-up and plain steps without a timer, then as many with one, then one whose operations are
    # counted
    assert [timer is NULL for timer in timers] == [True] * 2 + [False] + [True]
    assert isinstance(timers[2], PhaseTimer)
    assert not (tmp_path / "run").exists()
    assert found.conditions["policy"] == found.settings["policy"]["type"] == name
    assert found.samples_per_s * found.step_s == pytest.approx(4)
    assert list(found.phases) == [*PHASES, OTHER]
    assert sum(phase.worst for phase in found.phases.values()) == pytest.approx(found.timed_step_s)
    assert all(found.phases[name].worst > 0 for name in PHASES)  # each of them happens
    assert found.phases[OTHER].worst >= 0
    memory = found.memory
    count = found.conditions["parameters"]
    # a part is frozen, and the vision encoder of transformers reads values
    if name == "lerobot-smolvla":
        assert 0 < memory["gradients"] < 4 * count <= memory["parameters"]
        assert found.predicted is None
        return
    # no loss reaches some of pi0.5
    assert 0.8 * 4 * count < memory["gradients"] <= 4 * count <= memory["parameters"]
    assert memory["average"] == memory["parameters"]
    # two moments, and a step count per tensor
    assert 8 * count <= memory["optimizer state"] <= 8 * count + 4 * 1000
    assert 0 < memory["activations"] < memory["peak"]
    assert memory["peak"] > sum(
        memory[name] for name in ("parameters", "optimizer state", "average", "activations")
    )
    predicted = found.predicted
    assert predicted is not None
    assert predicted.keys() == memory.keys()
    same = {
        name: memory[name] for name in ("parameters", "gradients", "optimizer state", "average")
    }
    assert same.items() <= predicted.items()
    assert predicted["activations"] == pytest.approx(memory["activations"], rel=0.02)
    assert predicted["peak"] == pytest.approx(memory["peak"], rel=0.02)
    # negative control
    assert predicted["peak"] - predicted["gradients"] != pytest.approx(memory["peak"], rel=0.05)
    assert found.flops > 2 * 3 * 4 * count / 10
    assert found.flops_per_s == pytest.approx(found.flops / found.step_s)
    assert found.mfu is None
    assert (found.tokens_per_s is not None) == (
        name in ("pi05", "pi0", "value_pi05", "world_action")
    )
    assert (found.conditions["steps"], found.conditions["warmup"]) == (1, 1)
    assert Profile.from_plain(json.loads(json.dumps(found.plain()))) == found


@pytest.mark.parametrize(
    "read", [lambda x: x.sum().item(), lambda x: len(x.nonzero())], ids=["value", "shape"]
)
def test_profile_of_a_step_that_reads_values(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    read: Any,
) -> None:
    """Shapes alone have no values to read: the measurements remain, without a prediction."""
    plain = FlowPolicy.losses

    def reading(self: FlowPolicy, batch: Any, *rest: Any, **options: Any) -> Any:
        assert read(batch["action"]) is not None
        return plain(self, batch, *rest, **options)

    monkeypatch.setattr(FlowPolicy, "losses", reading)
    found = profile(tiny_config(data, tmp_path / "run"), warmup=1, steps=1)
    assert found is not None
    assert found.predicted is None
    assert found.memory["peak"] > 0
    warned = [record for record in caplog.records if record.name == profiling.__name__]
    assert [record.levelname for record in warned] == ["WARNING"]
    assert "\n" not in warned[0].getMessage()


def two_ranks(data: Path, out: Path) -> Profile | None:
    config = tiny_config(data, out, parallel=ParallelConfig(dp_shard=2, timeout=300))
    return profile(config, warmup=1, steps=3)


@pytest.mark.long
def test_profile_on_two_ranks(data: Path, tmp_path: Path) -> None:
    found, other = in_ranks(2, two_ranks, data, tmp_path)
    assert other is None
    assert (
        found.conditions["ranks"],
        found.conditions["replicas"],
        found.conditions["shards"],
    ) == (2, 1, 2)
    # counts, norm and votes; and the weights and gradients of every block
    assert found.collectives > 5
    assert found.collectives_s > 0
    assert {phase.rank for phase in found.phases.values()} <= {0, 1}
    assert found.memory["gradients"] < 0.6 * 4 * found.conditions["parameters"]
    assert found.predicted is not None
    for name in ("parameters", "gradients", "optimizer state", "average"):
        assert found.predicted[name] == found.memory[name]
    # Buffers of collectives that are still under way count, too: on a loaded machine one more of
    # them.
    assert 0.75 < found.predicted["activations"] / found.memory["activations"] < 1.05
    assert found.memory["optimizer state"] < 0.6 * 8 * found.conditions["parameters"]


def rank(plain: float, **phases: float) -> RankProfile:
    memory = dict.fromkeys(("parameters", "peak"), int(100 * plain))
    return RankProfile(
        plain, plain / 10, 2 * plain, phases, 3, plain / 5, memory, flops=int(1e6), inputs={}
    )


def test_profile_takes_the_slowest_rank() -> None:
    ranks = [rank(1.0, forward=0.5, backward=0.1), rank(2.0, forward=0.25, backward=0.3)]
    found = combine(ranks, batch=64, fastest=1e6, conditions={})
    assert (found.step_s, found.samples_per_s, found.waiting_s, found.timed_step_s) == (
        2.0,
        32.0,
        0.2,
        4.0,
    )
    assert (
        found.phases["forward"].worst,
        found.phases["forward"].rank,
        found.phases["forward"].mean,
    ) == (
        0.5,
        0,
        0.375,
    )
    assert (found.phases["backward"].worst, found.phases["backward"].rank) == (0.3, 1)
    assert found.phases["logging"].worst == 0
    assert found.memory == {"parameters": 200, "peak": 200}
    # of each of the two devices
    assert (found.flops, found.flops_per_s, found.mfu) == (2e6, 5e5, 0.5)


def test_profile_shows_a_prediction_that_is_off() -> None:
    found = combine([rank(100.0)], batch=64, fastest=None, conditions={})
    # in another program's process group
    assert [line[1:] for line in memory_table(found)[1:]] == [["0.01"], ["0.01"]]
    beside = memory_table(replace(found, predicted={"parameters": 10_000, "peak": 9_000}))
    assert [line[-1] for line in beside] == ["difference", "+0.0%", "-10.0%"]


def test_profile_explains_a_step_longer_than_its_phases() -> None:
    found = combine([rank(2.5, **{"data wait": 0.1})], batch=64, fastest=None, conditions={})
    slower = explain_difference(replace(found, timed_step_s=0.9, waiting_s=1.5))
    assert "1,500.00 ms" in slower  # of 2,500 as it is trained
    assert "100.00 ms" in slower
    assert "200.00 ms" in slower  # 2.5 - 0.9 - 1.4
    assert "ms" not in explain_difference(found).split("synchronised")[1]
    assert explain_difference(found) != slower


@pytest.mark.long
def test_profile_command_writes_a_page_and_prints(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from understudy_kit import dump_yaml

    file = tmp_path / "c.yaml"
    out = tmp_path / "out"
    file.write_text(dump_yaml(tiny_config(data, out)))
    asked = ["profile", str(file), "--profile.steps", "2", "--profile.warmup-steps", "1"]
    assert main.main(asked) == 0
    printed = capsys.readouterr().out
    for text in (
        *PHASES,
        "samples per second",
        "peak, all together",
        "step, as in training",
        "predicted",
        "+0.0%",
    ):
        assert text in printed
    page = (out / "profile.html").read_text()
    assert all(f">{head}<" in page for head in ("predicted", "measured", "difference"))
    assert page.count('class="bar"') > len(PHASES)  # of time, and of memory
    assert 'src="http' not in page  # it opens offline
    assert 'href="http' not in page
    assert main.main([*asked, "--json"]) == main.WRONG_INPUT
    assert "--overwrite" in capsys.readouterr().err
    assert main.main([*asked, "--json", "--overwrite"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((out / "profile.json").read_text())
    assert facts["predicted"].keys() == facts["memory"].keys()
    assert sorted(path.name for path in out.iterdir()) == ["profile.html", "profile.json"]
    assert main.main(["profile", str(file), "--profile.steps", "0"]) == main.WRONG_INPUT
    assert "profile.steps" in capsys.readouterr().err


def test_count_flops_counts_needed_operations() -> None:
    layer = nn.Linear(8, 16)

    def step() -> None:
        layer(torch.ones(4, 8, requires_grad=True)).sum().backward()

    assert count_flops(step, layer) == 3 * 2 * 4 * 8 * 16  # forward, and two products backward
    counts: Counter[str] = Counter()
    for kept in ("none", "selective", "full"):
        model = policy()
        apply_activation_checkpointing(model.blocks(), kept)
        counts[kept] = count_flops(
            lambda m=model: scalar(m.flow_losses(batch(3), *draws(3))).backward(), model
        )
    # repeated work is not counted
    assert counts["none"] == counts["selective"] == counts["full"] > 0


@pytest.mark.parametrize(
    ("device", "arithmetic", "teraflops"),
    [
        ("NVIDIA H200", "bfloat16", 989.5),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "bfloat16", 362.0),
        ("NVIDIA B200", "float32", None),
        ("NVIDIA A10G", "bfloat16", None),  # not an A10
        ("x86_64", "float32", None),
    ],
)
def test_peak_flops_by_name(device: str, arithmetic: str, teraflops: float | None) -> None:
    assert peak_flops(device, arithmetic) == (None if teraflops is None else teraflops * 1e12)


def test_profile_gives_a_utilisation_for_a_known_peak(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "peak_flops", lambda device, arithmetic: 1e12)
    found = profile(tiny_config(data, tmp_path), warmup=1, steps=1)
    assert found is not None
    assert found.mfu == pytest.approx(found.flops_per_s / 1e12)


# -- the timer inside a step: phases add up, nested ones are not counted twice, nothing happens
# without one


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phase_timer_excludes_inner_phases() -> None:
    clock = Clock()
    timer = PhaseTimer(clock=clock)
    for _ in range(2):
        with timer("forward"):
            clock.now += 1.0
            with timer("communication"):
                clock.now += 10.0
                with timer("logging"):
                    clock.now += 100.0
            clock.now += 2.0
        with timer("clip"):
            clock.now += 0.5
    assert timer.taken() == {"forward": 6.0, "communication": 20.0, "logging": 200.0, "clip": 1.0}
    assert timer.taken() == {}  # each call starts anew


def test_phase_timer_waits_at_both_ends() -> None:
    """A device that works on after it was called: without waiting its seconds would be booked on
    the next phase.
    """
    clock = Clock()
    queued = [0.0]

    def wait() -> None:
        clock.now += queued[0]
        queued[0] = 0.0

    timed = PhaseTimer(wait, clock)
    negligent = PhaseTimer(lambda: None, clock)
    for timer in (timed, negligent):
        queued[0] = 3.0  # still busy with earlier work
        with timer("forward"):
            queued[0] += 5.0
        with timer("optimizer"):
            wait()
    assert timed.taken() == {"forward": 5.0, "optimizer": 0.0}
    assert negligent.taken() == {"forward": 0.0, "optimizer": 8.0}  # the negative control


def test_phase_timer_closes_a_failed_phase() -> None:
    clock = Clock()
    timer = PhaseTimer(clock=clock)

    def fails() -> None:
        with timer("backward"):
            clock.now += 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with timer("forward"):
        clock.now += 1.0
    assert timer.taken() == {"backward": 1.0, "forward": 1.0}


def test_phase_timer_refuses_an_unknown_phase() -> None:
    with pytest.raises(ValueError, match="'fowards'"), PhaseTimer()("fowards"):
        pass


def test_null_timer_creates_nothing() -> None:
    assert NULL("forward") is NULL("backward")
    for phase in PHASES:
        with NULL(phase):
            pass
