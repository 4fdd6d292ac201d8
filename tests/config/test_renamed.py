"""Old names of settings: accepted in files and flags, with one warning that has the new names."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from support.refusals import warned
from understudy.cli.arguments.parse import settings as parse
from understudy.cli.main import COMMANDS, resolve
from understudy.config.data import DataConfig, SourceConfig
from understudy.config.renamed import OldNameWarning, current_flags, current_names
from understudy.config.rollout import RolloutEvery
from understudy.config.schema import differences, load, override, validate
from understudy.config.train import OptimConfig, ScheduleConfig, TrainConfig
from understudy.errors import ConfigError

FILES = Path(__file__).parent / "old_settings"


def setting_paths(cls: type, prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every setting of a class."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        if isinstance(kind, type) and is_dataclass(kind):
            kind = getattr(kind, "select", lambda _, kind=kind: kind)({})
            yield from setting_paths(kind, f"{prefix}{own.name}.")
        else:
            yield f"{prefix}{own.name}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_old_name_leads_to_a_setting(name: str) -> None:
    cls = resolve(COMMANDS[name].settings)
    known = set(setting_paths(cls)) | {f"data.sources.*.{path}" for path in setting_paths(SourceConfig)}
    renamed_here = getattr(cls, "RENAMED", {})
    assert set(renamed_here.values()) <= known
    assert not set(renamed_here) & known


def test_load_accepts_a_file_of_the_last_release() -> None:
    old, new = "data.sources.0.keep", "data.sources.0.keep_ranges"
    with warned(FILES / "everything.yaml", old, new, kind=OldNameWarning) as caught:
        config = load(TrainConfig, FILES / "everything.yaml")
    assert len(caught) == 1
    source = SourceConfig(root="d", keep_ranges="k.json", delta_action_dims=(0, 1), weight=1.0)
    expected = override(
        TrainConfig(data=DataConfig(chunk_size=6, shuffle="uniform", normalize="quantile", sources=(source,))),
        output_dir="runs/mix",
        batch_size=32,
        micro_batch_size=8,
        max_skipped_steps=3,
        torch_threads=2,
        loader={"num_threads": 4, "memory": "1GB"},
        checkpoint={"every": 7, "keep_last": 3, "keep_best": "macro", "async_save": True},
        val={"every": 9, "frames": 11, "open_loop_every": 5},
        log={"every": 2, "trackers": ("tensorboard",), "report": False},
        optim=OptimConfig(grad_clip_norm=0.5),
        schedule=ScheduleConfig(warmup_steps=5, final_lr_ratio=0.1, decay_steps=90),
        rollout={"action_steps": 2, "sampling_steps": 3, "image_size": 32, "num_envs": 4, "every": 100},
    )
    assert set(differences(expected, config)) <= {"rollout.env", "rollout.world"}


def test_load_accepts_the_config_of_a_run_of_the_last_release() -> None:
    with pytest.warns(FutureWarning):
        config = load(TrainConfig, FILES / "run.yaml")
    assert (config.output_dir, config.batch_size, config.val.every) == ("RUN", 4, 5)


def test_validate_does_not_warn_about_new_names() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = validate(TrainConfig, {"batch_size": 3, "val": {"every": 2}})
    assert (config.batch_size, config.val.every) == (3, 2)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ({"batch": 1, "batch_size": 2}, "batch: "),
        ({"val_every": 1, "val": {"every": 1}}, "val_every: "),
        ({"val_weights": "live"}, "val_weights: "),
    ],
)
def test_validate_refuses_both_names_and_removed_values(content: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(TrainConfig, content)
    assert str(caught.value).startswith(path)


def test_validate_reports_a_group_that_is_no_mapping() -> None:
    with pytest.raises(ConfigError, match="val_every"):
        validate(TrainConfig, {"val_every": 1, "val": 3})


def test_current_names_leaves_its_argument_and_other_classes_alone() -> None:
    content = {"val_every": 1, "data": {"sources": [{"keep": "a"}, {"root": "b"}]}}
    copy = {"val_every": 1, "data": {"sources": [{"keep": "a"}, {"root": "b"}]}}
    assert current_names(TrainConfig, content, warn=False) == {
        "val": {"every": 1},
        "data": {"sources": [{"keep_ranges": "a"}, {"root": "b"}]},
    }
    assert content == copy
    assert current_names(DataConfig, content) == content
    assert current_names(RolloutEvery, {"execute": 3}, warn=False) == {"action_steps": 3}


def test_current_flags_replaces_old_flags() -> None:
    arguments = [
        "--val-every",
        "3",
        "--keep_best=loss",
        "--no-report",
        "--steps",
        "4",
        "--rollout.execute",
        "2",
        "keep",
    ]
    with pytest.warns(FutureWarning) as caught:
        found = current_flags(TrainConfig, arguments)
    new = ["--val.every", "3", "--checkpoint.keep-best=loss", "--log.no-report", "--steps", "4"]
    assert found == [*new, "--rollout.action-steps", "2", "keep"]
    assert len(caught) == 1


def test_old_flags_give_the_same_settings_as_new_ones() -> None:
    old = ["--data.root", "d", "--out", "r", "--batch", "8", "--val-every", "0", "--no-report", "--data.chunk", "4"]
    new = ["--data.root", "d", "--output-dir", "r", "--batch-size", "8", "--val.every", "0", "--log.no-report"]
    with pytest.warns(FutureWarning):
        one = parse("train", TrainConfig, "[FILE]", old, launchable=True)
    assert one == parse("train", TrainConfig, "[FILE]", [*new, "--data.chunk-size", "4"], launchable=True)


@pytest.mark.parametrize(("name", "old", "new"), json.loads((FILES / "flags.json").read_text()))
def test_old_flags_of_each_command_work_and_warn_once(
    name: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cls, argument = resolve(COMMANDS[name].settings), COMMANDS[name].argument
    with pytest.warns(FutureWarning) as caught:
        given = parse(name, cls, argument, old.split(), launchable=False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given == parse(name, cls, argument, new.split(), launchable=False)


def test_two_old_names_of_one_setting_are_refused() -> None:
    with pytest.raises(ConfigError):
        validate(TrainConfig, {"loader_threads": 3, "loader": {"threads": 3}})
