"""Summary that a run prints before the first step: its data, and its trained parameters."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, OptimConfig, TrainConfig, ValConfig
from understudy.distributed.mesh import join_mesh
from understudy.policies.flow.config import FlowSettings
from understudy.testing import policies
from understudy.testing.mixtures import TOP, WRIST, mixed, tiny_sources
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import startup_summary
from understudy.train.data.run_data import open_data
from understudy.train.startup_summary import describe_trainable
from understudy.train.state import TrainState, init_train_state
from understudy_base import ConfigError
from understudy_data.order import Order
from understudy_data.order.spec import Entry
from understudy_kit import override


def lines(config: TrainConfig) -> list[str]:
    data = open_data(config)
    return startup_summary.startup_summary(config, data, data.order(config))


def test_startup_summary_notes_modes_cameras_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tiny_sources(tmp_path)
    config = mixed(sources, tmp_path / "r", mode="joint")
    _, _, _, _, *told = lines(config)
    assert told == [
        "frame rates differ: 10 fps, 0.3 s a chunk, in wide, small; 20 fps, 0.15 s a chunk, in two",
        "tasks without validation episodes, 2 of 5: 'task 1', 'wait'; data.val_fraction takes more "
        "episodes, data.val_episodes chooses them",
        "joint trains the action loss on 2/3 of the samples",
        "joint trains the dynamics loss on 2/3 of the samples",
        f"{TOP} 64x64 -> 16x16 (area) in wide, small",
        f"{TOP} 48x64 -> 16x16 (area) in two",
        f"{WRIST} 32x32 -> 16x16 (area)",
        f"no {WRIST} in wide, small: black there, and marked as missing",
        "images are loaded at 16 x 16: the sizes in the sources differ",
    ]
    # A mapping that was forgotten makes two cameras of one, and every sample lacks one of them.
    forgotten = mixed((sources[0], replace(sources[2], cameras={})), tmp_path / "r")
    assert [line for line in lines(forgotten) if line.startswith("no ")] == [
        "no observation.images.cam_0 in wide: black there, and marked as missing",
        f"no {TOP} in small: black there, and marked as missing",
    ]
    monkeypatch.setattr(startup_summary, "MAX_SOURCES", 1)
    monkeypatch.setattr(startup_summary, "MAX_NAMED", 1)
    few = lines(config)
    assert few[2] == "… and 2 more sources"
    assert f"no {WRIST} in wide and 1 more: black there, and marked as missing" in few


def test_startup_summary_names_tasks_without_validation(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "d")  # ten episodes of three tasks, in turn

    def noted(**of_data: Any) -> list[str]:
        config = tiny_config(data, tmp_path / "r")
        told = lines(replace(config, data=replace(config.data, **of_data)))
        return [line for line in told if line.startswith("tasks without validation episodes")]

    (line,) = noted(val_episodes=(0,))
    assert "2 of 3" in line
    assert not noted(val_episodes=(0, 1, 2, 3, 4))
    assert not noted(val_fraction=0.0)


def test_startup_summary_names_the_defaults_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mixed(tiny_sources(tmp_path), tmp_path / "r")
    brought = {"steps": config.steps, "optim": {"lr": config.optim.lr, "beta1": 0.25}}
    monkeypatch.setattr(type(config.policy), "run_defaults", lambda *_: brought)
    monkeypatch.setattr(type(config.policy), "deviation", lambda *_: "another loss", raising=False)
    assert [line for line in lines(config) if "flow" in line] == [
        f"from policy flow: steps {config.steps}, optim.lr {config.optim.lr}",
        "flow: another loss",
        f"not from policy flow: optim.beta1 {config.optim.beta1} (its own: 0.25)",
    ]


def test_startup_summary_notes_a_validation_sample(tmp_path: Path) -> None:
    config = mixed(tiny_sources(tmp_path), tmp_path / "r")
    frames = sum(len(part) for part in open_data(config).validation if part is not None)

    def told(most: int) -> list[str]:
        return [
            line for line in lines(override(config, val={"frames": most})) if "val.frames" in line
        ]

    assert told(0) == told(frames) == []
    (line,) = told(frames - 1)
    assert f"{frames - 1} of {frames}" in line


def test_startup_summary_notes_a_chunk_longer_than_episodes(tmp_path: Path) -> None:
    config = mixed(tiny_sources(tmp_path), tmp_path / "r")

    def told(chunk: int) -> list[str]:
        longer = replace(config, data=replace(config.data, chunk_size=chunk))
        return [line for line in lines(longer) if "data.chunk_size" in line]

    parts = open_data(config).training
    longest = max(int(np.diff(part.segments[:, 1:]).max()) for part in parts)
    assert told(longest) == []
    assert len(told(longest + 1)) == 1
    # With keep_rule window the segments are the first frames of chunks, which lie whole in their
    # ranges.
    ranges = tmp_path / "ranges.json"
    ranges.write_text(json.dumps({"0": [[0, 9]], "2": [[0, 11]]}))
    wide = replace(config.data.sources[0], keep_ranges=str(ranges))
    config = replace(
        config, data=replace(config.data, sources=(wide,), val_fraction=0.0), val=ValConfig(every=0)
    )
    assert told(8) == []


def test_startup_summary_shows_weight_and_share(tmp_path: Path) -> None:
    sources = tiny_sources(tmp_path)
    config = mixed(sources, tmp_path / "r")
    header, *rows = (line.split("  ") for line in lines(config)[:4])
    columns = [cell.strip() for cell in header if cell]
    assert columns[4:6] == ["weight", "share"]
    assert [cell.strip() for cell in rows[0] if "%" in cell] == ["50.000%", "50.000%"]  # 3 of 6
    odd = mixed(
        tuple(replace(s, weight=w) for s, w in zip(sources, (1.0, 100.0, 7.3))), tmp_path / "r"
    )
    data = open_data(odd)
    order = data.order(odd)
    assert not order.share_errors(data.weights)
    assert not [
        line for line in startup_summary.startup_summary(odd, data, order) if " has " in line
    ]
    # A run of an older release continues in whole slots.
    saved = replace(order.spec, version=1, schedule=(Entry(0, (1, 20, 2)),))
    older = Order.from_json(saved, data.training)
    assert [d for d, _, _ in older.share_errors(data.weights)] == [0, 2, 1]  # worst first
    named = [
        line.split(" has ")[0]
        for line in startup_summary.startup_summary(odd, data, older)
        if " has " in line
    ]
    assert named == [data.names[d] for d in (0, 2, 1)]


# -- the statement of the trained parameters before the first step ----------


PARTS = {"layers.1.*": "top", "out_proj.*": "top", "layers.*": "bottom"}


def lines_of(**settings: Any) -> tuple[TrainState, list[str]]:
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", **settings)
    with join_mesh(config.mesh) as mesh:
        state = init_train_state(
            config, policies.run_data(policies.config()), policies.NORMALIZATION, mesh
        )
        return state, describe_trainable(state)


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    return {line.split()[0]: line.replace(" %", "%").split()[1:] for line in lines[2:]}


def state_bytes(state: TrainState) -> int:
    return sum(
        t.numel() * t.element_size()
        for each in state.optimizer.state.values()
        for t in each.values()
    )


def test_a_run_that_trains_everything_is_one_line() -> None:
    state, lines = lines_of()
    count = sum(p.numel() for p in state.policy.parameters())
    assert len(lines) == 1
    assert f"all {count:,} parameters (100 %)" in lines[0]
    assert f"{state_bytes(state):,} bytes" in lines[0]
    assert state_bytes(state) == 8 * count + 4 * len(list(state.policy.parameters()))


def test_adapters_and_frozen_parts_are_counted_per_part() -> None:
    lora = LoraConfig(2, targets=("layers.*", "fuse"), also_train=("out_proj.bias",))
    state, lines = lines_of(
        lora=lora, optim=OptimConfig(freeze=("layers.0.shrink.*",)), init_from="somewhere"
    )
    trained = {name: p.numel() for name, p in state.policy.named_parameters() if p.requires_grad}
    total = sum(p.numel() for p in state.policy.parameters())
    assert f"{sum(trained.values()):,} of {total:,} parameters" in lines[0]
    assert "rank 2 on 6 linear layers" in lines[0]
    assert f"{state_bytes(state):,} bytes" in lines[0]
    assert state_bytes(state) == 8 * sum(trained.values()) + 4 * len(trained)
    full = lines.pop()
    assert full.startswith("lora.also_train: ")
    assert "out_proj (12)" in full
    rows = rows_of(lines)
    assert list(rows) == list(
        dict.fromkeys(name.partition(".")[0] for name, _ in state.policy.named_parameters())
    )
    assert rows["text"][1:] == ["0", "frozen", "-"]
    assert rows["out_proj"][1] == "12"
    assert rows["fuse"][3] == "1"
    assert rows["layers"][3] == "5", "a frozen layer has no adapter"
    counts = {
        part: sum(n for name, n in trained.items() if name.startswith(f"{part}.")) for part in rows
    }
    assert {part: int(row[1].replace(",", "")) for part, row in rows.items()} == counts


def test_adapters_on_fresh_weights_are_reported() -> None:
    for init_from, more in (("", 1), ("somewhere", 0)):
        _, lines = lines_of(lora=LoraConfig(2, targets=("*",)), init_from=init_from)
        assert sum(line.startswith("lora.rank: ") for line in lines) == more


def test_parts_of_a_policy_name_parameters_in_every_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FlowSettings, "PARTS", PARTS)
    optim = OptimConfig(freeze=("bottom.*",), lr_scale={"top.*.lora_b": 4.0})
    state, lines = lines_of(
        lora=LoraConfig(2, targets=("top.*", "bottom.*")), optim=optim, init_from="somewhere"
    )
    adapters = {name for name, p in state.policy.named_parameters() if p.requires_grad}
    assert adapters == {
        f"{layer}.{kind}"
        for layer in ("layers.1.modulate", "layers.1.grow", "layers.1.shrink", "out_proj")
        for kind in ("lora_a", "lora_b")
    }
    assert rows_of(lines)["top"][3] == "4"
    scales = {
        group["lr_scale"]: set(group["param_names"]) for group in state.optimizer.param_groups
    }
    assert scales[4.0] == {name for name in adapters if name.endswith("lora_b")}
    with pytest.raises(ConfigError, match="'middle"):
        lines_of(optim=OptimConfig(freeze=("middle.*",)))
