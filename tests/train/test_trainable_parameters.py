"""The statement of the trained parameters before the first step."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import policies
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, OptimConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.errors import ConfigError
from understudy.policies.flow.config import FlowSettings
from understudy.train.startup_summary import describe_trainable
from understudy.train.state import TrainState, init_train_state

DATA: Any = SimpleNamespace(
    policy_config=lambda _: policies.config(), names=("",), heads=("",), head_of_source=np.zeros(1, np.int64)
)
PARTS = {"layers.1.*": "top", "out_proj.*": "top", "layers.*": "bottom"}


def lines_of(**settings: Any) -> tuple[TrainState, list[str]]:
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", **settings)
    with join_mesh(config) as mesh:
        state = init_train_state(config, DATA, policies.NORMALIZATION, mesh)
        return state, describe_trainable(state)


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    return {line.split()[0]: line.replace(" %", "%").split()[1:] for line in lines[2:]}


def state_bytes(state: TrainState) -> int:
    return sum(t.numel() * t.element_size() for each in state.optimizer.state.values() for t in each.values())


def test_a_run_that_trains_everything_is_one_line() -> None:
    state, lines = lines_of()
    count = sum(p.numel() for p in state.policy.parameters())
    assert len(lines) == 1
    assert f"all {count:,} parameters (100 %)" in lines[0]
    assert f"{state_bytes(state):,} bytes" in lines[0]
    assert state_bytes(state) == 8 * count + 4 * len(list(state.policy.parameters()))


def test_adapters_and_frozen_parts_are_counted_per_part() -> None:
    lora = LoraConfig(2, targets=("layers.*", "fuse"), also_train=("out_proj.bias",))
    state, lines = lines_of(lora=lora, optim=OptimConfig(freeze=("layers.0.shrink.*",)), init_from="somewhere")
    trained = {name: p.numel() for name, p in state.policy.named_parameters() if p.requires_grad}
    total = sum(p.numel() for p in state.policy.parameters())
    assert f"{sum(trained.values()):,} of {total:,} parameters" in lines[0]
    assert "rank 2 on 6 linear layers" in lines[0]
    assert f"{state_bytes(state):,} bytes" in lines[0]
    assert state_bytes(state) == 8 * sum(trained.values()) + 4 * len(trained)
    rows = rows_of(lines)
    assert list(rows) == list(dict.fromkeys(name.partition(".")[0] for name, _ in state.policy.named_parameters()))
    assert rows["text"][1:] == ["0", "frozen", "-"]
    assert rows["out_proj"][1] == "12"
    assert rows["fuse"][3] == "1"
    assert rows["layers"][3] == "5", "a frozen layer has no adapter"
    counts = {part: sum(n for name, n in trained.items() if name.startswith(f"{part}.")) for part in rows}
    assert {part: int(row[1].replace(",", "")) for part, row in rows.items()} == counts


def test_adapters_on_fresh_weights_are_reported() -> None:
    for init_from, more in (("", 1), ("somewhere", 0)):
        _, lines = lines_of(lora=LoraConfig(2, targets=("*",)), init_from=init_from)
        assert sum(line.startswith("lora.rank: ") for line in lines) == more


def test_parts_of_a_policy_name_parameters_in_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlowSettings, "PARTS", PARTS)
    optim = OptimConfig(freeze=("bottom.*",), lr_scale={"top.*.lora_b": 4.0})
    state, lines = lines_of(lora=LoraConfig(2, targets=("top.*", "bottom.*")), optim=optim, init_from="somewhere")
    adapters = {name for name, p in state.policy.named_parameters() if p.requires_grad}
    assert adapters == {
        f"{layer}.{kind}"
        for layer in ("layers.1.modulate", "layers.1.grow", "layers.1.shrink", "out_proj")
        for kind in ("lora_a", "lora_b")
    }
    assert rows_of(lines)["top"][3] == "4"
    scales = {group["lr_scale"]: set(group["param_names"]) for group in state.optimizer.param_groups}
    assert scales[4.0] == {name for name in adapters if name.endswith("lora_b")}
    with pytest.raises(ConfigError, match="'middle"):
        lines_of(optim=OptimConfig(freeze=("middle.*",)))
