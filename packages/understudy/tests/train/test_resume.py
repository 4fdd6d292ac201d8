"""Stop and resume: delay of a stop, messages, every sample consumed once, and a result that equals
the whole run's.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import DataConfig, EmaConfig, OptimConfig, ScheduleConfig, TrainConfig
from understudy.policies.registry import policy_type
from understudy.policies.settings import PolicySettings
from understudy.testing import resumed
from understudy.testing.killed import world_action_settings, write_tokenizers
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import same_run, series, tiny_config, tiny_dataset, trained_run
from understudy.train import run, session
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.resume_check import check_resume, stretch_schedule
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import Fixed, OnResume, SourceConfig, differences, override, plain
from understudy_kit.cli.main import read_settings

HERE = {"world": 1, "versions": {"torch": "2.0", "numpy": "1.0"}}


@pytest.fixture(scope="module")
def half(data: Path) -> Path:
    """A run stopped at step 6 of 12."""
    out = data.parent / "half"
    with resumed.watched(out, {6: resumed.send(signal.SIGTERM)}):
        assert run.train(tiny_config(data, out)) == run.STOPPED
    return out


def check(then: TrainConfig, now: TrainConfig, step: int = 100, **state: Any) -> list[str]:
    return check_resume(
        "runs/x",
        then,
        now,
        {"step": step, "position": step * then.batch_size, **HERE, **state},
        HERE,
    )


# -- messages --------------------------------------------------------------------------------------


def leaves(content: dict[str, Any], prefix: str = "") -> list[str]:
    nested = [(prefix + key, value) for key, value in content.items()]
    nested = [
        (p, {str(i): item for i, item in enumerate(v)} if p == "data.sources" else v)
        for p, v in nested
    ]
    return [
        p
        for path, v in nested
        for p in (leaves(v, path + ".") if isinstance(v, dict) and v else [path])
    ]


def test_marker_exists_for_every_setting() -> None:
    config = TrainConfig(data=DataConfig(sources=(SourceConfig("d"),)))
    names = leaves(plain(config))
    assert "data.sources.0.weight" in names
    assert [name for name in names if OnResume.find_marker(config, name) is None] == []


def test_marker_of_a_setting_wins_over_its_group() -> None:
    config = TrainConfig(data=DataConfig(sources=(SourceConfig("d"),)))
    assert isinstance(OnResume.find_marker(config, "data.chunk_size"), Fixed)
    assert isinstance(OnResume.find_marker(config, "data.cache_size"), OnResume)
    assert isinstance(OnResume.find_marker(config, "data.sources.0.root"), OnResume)
    assert isinstance(OnResume.find_marker(config, "data.sources.0.drop_first"), Fixed)
    assert OnResume.find_marker(config, "optim.lr_scale.vision.*") == OnResume.find_marker(
        config, "optim.lr_scale"
    )
    assert OnResume.find_marker(config, "unknown") is None


def test_check_resume_without_changes_is_silent() -> None:
    config = TrainConfig(data=DataConfig(root="d")).resolved()
    assert check(config, config) == []
    assert check_resume("r", config, config, None, HERE) == []


def test_check_resume_names_a_mapping_in_another_sequence() -> None:
    then = TrainConfig(
        data=DataConfig(root="d", prompt_metadata={"quality": 0.1, "success": 0.2}),
        optim=OptimConfig(
            lr_scale={"vision.*": 0.1, "*": 1.0}, weight_decay_of={"vision.*": 0.1, "*": 0.0}
        ),
    )

    def turned(group: Any, name: str) -> Any:
        return replace(group, **{name: dict(reversed(getattr(group, name).items()))})

    for name in ("lr_scale", "weight_decay_of"):
        now = replace(then, optim=turned(then.optim, name))
        refused_or_named: list[str] = []
        try:
            refused_or_named = check_resume("r", then, now, None, HERE)
        except ConfigError as error:
            refused_or_named = [str(error)]
        assert any(f"optim.{name}" in line for line in refused_or_named)
    with pytest.raises(ConfigError) as error:
        check_resume(
            "r", then, replace(then, data=turned(then.data, "prompt_metadata")), None, HERE
        )
    assert "data.prompt_metadata" in str(error.value)
    assert check_resume("r", then, then, None, HERE) == []


def test_check_resume_refuses_another_run_with_all_reasons(half: Path) -> None:
    config = RunDir(half).settings()
    other = replace(
        config,
        seed=1,
        log={"every": 1},
        data=replace(config.data, chunk_size=2),
        policy=replace(config.policy, width=24),
        optim=replace(
            config.optim, lr=0.5, freeze=("vision.*",), train=("layers.*",), ema=EmaConfig(0.0)
        ),
    )
    before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as caught:
        run.resume(other)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{half}: ")
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "seed",
        "data.chunk_size",
        "policy.width",
        "optim.freeze",
        "optim.train",
        "optim.ema.decay",
    ]
    assert "seed: 7 -> 1: it decides the order and every draw" in lines[1]
    assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before


HAND = {"decay_steps": 200}


@pytest.mark.parametrize(
    ("change", "schedule", "expected"),
    [
        (
            {"steps": 400},
            {},
            "0.000895 at step 101 in place of 0.000587; its decay ends with the run, at step 400",
        ),
        (
            {"steps": 400},
            HAND,
            "its decay ends at step 200, as set, and stays at 0 for the last 200 steps, which "
            "train nothing; --schedule.decay-steps 400 stretches it",
        ),
        (
            {"steps": 400},
            {"final_lr_ratio": 0.1, **HAND},
            "stays at 0.0001 for the last 200 steps; --schedule.decay-steps 400",
        ),
        ({"steps": 400}, {"kind": "constant"}, "learning rate: 0.001 to the end, step 400"),
        (
            {"steps": 150},
            {"kind": "linear", "warmup_steps": 0, **HAND},
            "ends at 0.000255, before the end of the decay at step 200",
        ),
        (
            {
                "steps": 400,
                "schedule": ScheduleConfig(kind="linear", warmup_steps=0, decay_steps=400),
            },
            {"kind": "linear", "warmup_steps": 0},
            "0.00075 at step 101 in place of 0.0005",
        ),
        (
            {"optim": OptimConfig(lr=2e-3)},
            {"kind": "constant"},
            "0.002 at step 101 in place of 0.001",
        ),
        (
            {"steps": 400},
            {"warmup_steps": 800},
            "rises to 0.0005 at the end, within the warm-up of 800 steps",
        ),
        (
            {"steps": 400},
            {"warmup_steps": 300, **HAND},
            "ends at step 301, as set, and stays at 0 for the last 99 steps",
        ),
    ],
)
def test_check_resume_describes_the_learning_rate(
    change: dict[str, Any], schedule: dict[str, Any], expected: str
) -> None:
    then = TrainConfig(
        steps=200, data=DataConfig(root="d"), schedule=ScheduleConfig(**schedule)
    ).resolved()
    now = stretch_schedule(then, replace(then, **change), 100)
    lines = check(then, now)
    assert expected in "\n".join(lines)
    assert sum("learning rate:" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("schedule", "done", "second"),
    [
        ({}, 200, True),
        ({"kind": "linear"}, 199, True),
        ({}, 190, True),
        ({}, 100, False),
        ({"final_lr_ratio": 0.2}, 200, False),  # a rise of less than tenfold
        ({"kind": "constant"}, 200, False),
        ({"decay_steps": 200}, 200, False),  # set by hand: it stays where it is
        ({"warmup_steps": 300}, 200, False),  # within the first warm-up
    ],
)
def test_stretch_schedule_warms_up_where_the_rate_would_jump(
    schedule: dict[str, Any], done: int, second: bool
) -> None:
    then = TrainConfig(
        steps=200, data=DataConfig(root="d"), schedule=ScheduleConfig(**schedule)
    ).resolved()
    now = stretch_schedule(then, replace(then, steps=1000), done)
    assert now.schedule.warmup_from == (done if second else 0)
    assert now.schedule.decay_steps == then.schedule.decay_steps
    again = stretch_schedule(then, now, done)  # a kill before the first checkpoint
    assert again == now
    assert stretch_schedule(now, now, done + 7) == now


def test_stretch_schedule_follows_the_decay_that_a_policy_brings() -> None:
    flags = ["--data.root", "d", "--policy.type", "pi05", "--steps", "3000"]
    then = read_settings("train", flags)
    assert then.schedule.decay_steps == 3000  # compressed by the policy
    assert stretch_schedule(then, replace(then, steps=6000), 3000).schedule.decay_steps == 6000
    assert stretch_schedule(then, replace(then, steps=60_000), 3000).schedule.decay_steps == 30_000
    hand = read_settings("train", [*flags, "--schedule.decay-steps", "2000"])
    assert stretch_schedule(hand, replace(hand, steps=6000), 3000).schedule.decay_steps == 2000


def test_check_resume_reports_processes_versions_and_storage() -> None:
    config = TrainConfig(data=DataConfig(root="d")).resolved()
    lines = check(
        config,
        replace(config, precision="bf16-split", batch_size=32),
        world=3,
        versions={"torch": "1.9"},
    )
    assert [line.split(":")[0] for line in lines] == [
        "batch_size",
        "precision",
        "batch_size",
        "processes",
        "torch",
    ]
    assert "bit for bit" in lines[1]
    assert "positions keep their samples" in lines[2]
    assert "from position 6400 on" in lines[2]
    assert "3 -> 1" in lines[3]
    assert "round" in lines[3]
    assert lines[4].startswith("torch: 1.9 -> 2.0")


def test_check_resume_refuses_fewer_steps_than_done() -> None:
    config = TrainConfig(steps=200, data=DataConfig(root="d")).resolved()
    with refused("steps: 200 -> 99", 100, kind=ConfigError):
        check(config, replace(config, steps=99))
    assert check(config, replace(config, steps=100))


def test_resume_logs_changes_before_training_and_keeps_them(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    shutil.copytree(half, out)
    seen = []

    def stop(*_: Any, **__: Any) -> None:
        seen.append(capsys.readouterr().err)
        raise OSError

    monkeypatch.setattr(session, "init_train_state", stop)
    with pytest.raises(OSError):
        run.resume(override(RunDir(out).settings(), steps=14, log={"every": 1}))
    assert "resume: steps: 12 -> 14" in seen[0]
    assert "its decay ends with the run, at step 14" in seen[0]
    assert "resume: log.every: 3 -> 1: does not affect training" in seen[0]
    monkeypatch.undo()
    assert run.resume(RunDir(out).settings()) == run.DONE
    # Still logged: the latest checkpoint is one of the old settings.
    assert "resume: steps: 12 -> 14" in capsys.readouterr().err
    assert run.resume(RunDir(out).settings()) == run.DONE
    printed = capsys.readouterr().err
    assert "12 -> 14" not in printed
    assert "all 14 steps are done; --steps trains for longer" in printed


def test_resume_notices_an_edited_config(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(half, tmp_path / "r")
    path = tmp_path / "r/config.yaml"
    text = path.read_text()
    path.write_text(text.replace("seed: 7", "seed: 8"))
    with pytest.raises(ConfigError, match="seed: 7 -> 8"):
        run.resume(RunDir(tmp_path / "r").settings())
    path.write_text(text.replace("text_dropout: 0.3", "text_dropout: 0.0"))
    assert run.resume(RunDir(tmp_path / "r").settings()) == run.DONE
    assert "augment.text_dropout: 0.3 -> 0.0: the same samples" in capsys.readouterr().err


def test_resume_with_another_batch_size_continues_at_the_next_position(
    half: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    shutil.copytree(half, out)
    shutil.copytree(half.with_name("half.positions"), tmp_path / "r.positions")
    with resumed.watched(out, session=1):
        assert (
            run.resume(replace(RunDir(out).settings(), batch_size=6, micro_batch_size=3))
            == run.DONE
        )
    assert resumed.consumed(out) == Counter(range(6 * 4 + 6 * 6))
    assert series(out)[:6] == series(half)
    assert checkpoint.read_state(out / "checkpoints/step-00000012")["position"] == 60


# -- when it stops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["open_data", "new_run_record", "init_train_state"])
def test_train_exits_at_once_on_a_signal_before_the_first_step(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
) -> None:
    module = session if where == "init_train_state" else run
    plain_one = getattr(module, where)
    config = tiny_config(data, tmp_path / "r", steps=4)

    def asked(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return plain_one(*arguments, **options)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, where, asked)
    assert run.train(config) == run.STOPPED == 75
    begun = where == "init_train_state"
    assert (tmp_path / "r/config.yaml").exists() == begun
    assert f"understudy {'resume' if begun else 'train'}" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    assert (
        run.resume(RunDir(tmp_path / "r").settings()) if begun else run.train(config)
    ) == run.DONE


@pytest.mark.long
def test_command_stops_on_a_signal_while_torch_is_imported(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch': os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from understudy_kit.cli.main import main\n"
        f"sys.exit(main(['train', '--data.root', 'd', '--output-dir', {str(tmp_path / 'r')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (75, ""), done.stderr
    assert done.stderr.startswith("stopped by SIGTERM before")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_train_stops_at_the_stop_file(half: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    with resumed.watched(out, {6: (out / "STOP").touch}):
        assert run.train(tiny_config(data, out)) == run.STOPPED
    assert checkpoint.list_steps(out / "checkpoints") == [4, 6]
    assert not (out / "STOP").exists()
    assert series(out) == series(half)
    (out / "STOP").touch()  # of another day: a resume is to continue the run
    assert run.resume(RunDir(out).settings()) == run.DONE


@pytest.mark.long
def test_ranks_stop_at_one_step_and_consume_each_sample_once(data: Path, tmp_path: Path) -> None:
    """Signals and the file reach one rank only. Then 2 -> 1 -> 2 processes in one run."""
    config = tiny_config(data, tmp_path, checkpoint={"async_save": True, "keep_last": 9})
    one, two = in_ranks(2, resumed.stops, config, tmp_path)
    assert one == two
    assert one == {
        "whole": 0,
        "signal": [75, [4, 5]],
        "signal, on": 0,
        "file": [75, [4, 6]],
        "early": [75, []],
        "early, on": 0,
    }
    for name in ("signal", "early"):
        same_run(tmp_path / "whole", tmp_path / name)
    out = tmp_path / "file"
    assert not (out / "STOP").exists()
    assert resumed.carried_on(out, 9, 1) == run.STOPPED  # alone
    assert in_ranks(2, resumed.carried_on, out, None, 2) == [0, 0]
    assert resumed.consumed(out) == Counter(range(12 * 4))
    assert [
        json.loads((out / f"checkpoints/step-{s:08d}/state.json").read_text())["world"]
        for s in (6, 9, 12)
    ] == [
        2,
        1,
        2,
    ]
    whole = series(tmp_path / "whole")
    mixed = series(out)
    assert mixed[:6] == whole[:6]
    assert [r["loss"] for r in mixed] == pytest.approx([r["loss"] for r in whole], rel=1e-4)
    assert differences(RunDir(out).settings(), RunDir(tmp_path / "whole").settings()).keys() == {
        "output_dir"
    }


# -- resumed runs equal whole ones, of flow in test_run.py -----------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/ and, where their packages are installed, the tokenizers of pi0.5."""
    folder = tmp_path_factory.mktemp("policies")
    tiny_dataset(folder / "data")
    return folder


def pi(kind: str, **settings: Any) -> Callable[[Path], dict[str, Any]]:
    """Changes of a run of pi0.5 or pi0; "fast" is the name of a folder."""

    def changes(files: Path) -> dict[str, Any]:
        for package in ("sentencepiece", "tokenizers"):
            pytest.importorskip(package, reason="needs the extra pi05")
        if not (files / "fast").exists():
            write_tokenizers(files)
        base = {"size": "tiny", "tokenizer": str(files / "tokenizer.model"), "prompt_tokens": 64}
        if "fast" in settings:
            base["fast"] = str(files / settings["fast"])
        return {"policy": policy_type(kind).settings(**(settings | base))}

    return changes


def world_action(files: Path) -> PolicySettings:
    return world_action_settings(files / "tokenizer.model")


def adapters(files: Path) -> dict[str, Any]:
    """Low-rank adapters on the policy of another run."""
    if not (files / "base").exists():
        trained_run(files / "base")
    return {"init_from": str(files / "base/policy"), "lora": {"rank": 4, "alpha": 8.0}}


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "adapters": adapters,
    "adapters on bf16-split": lambda files: {**adapters(files), "precision": "bf16-split"},
    "pi05 with text and action tokens": pi(
        "pi05", max_delay=1, fast="fast", action_tokens=48, response_tokens=8
    ),
    "pi05 with a history": pi("pi05", history=(0.2, 0.4), state_history=True),
    "pi0 in parts by tokens": lambda files: {
        **pi("pi0", max_delay=1)(files),
        "max_num_tokens": 160,
        "max_samples": 3,
    },
    "one instruction of several": lambda files: {"augment": {"task_separator": " the "}},
    "world_action": lambda files: {
        **pi("pi05")(files),
        "policy": world_action(files),
        "mode": "joint",
    },
}
MESHES = {"one instruction of several": (2, 1), "world_action": (2, 1)}
"""Processes and shards of the resumed run; one process where none are named."""
QUICK = (
    "adapters",
    "pi05 with text and action tokens",
    "one instruction of several",
    "world_action",
)


def resume_sharded(out: Path, shards: int) -> int:
    return run.resume(override(RunDir(out).settings(), parallel={"dp_shard": shards}))


@pytest.mark.short("adapters-mesh0")
@pytest.mark.parametrize(
    ("case", "mesh"),
    [
        *(
            pytest.param(c, MESHES.get(c, (1, 1)), marks=() if c in QUICK else pytest.mark.long)
            for c in CASES
        ),
        *(pytest.param("world_action", mesh, marks=pytest.mark.long) for mesh in ((2, 2), (4, 2))),
    ],
)
def test_resumed_run_equals_the_whole(
    files: Path, tmp_path: Path, case: str, mesh: tuple[int, int]
) -> None:
    world, shards = mesh
    config: TrainConfig = tiny_config(
        files / "data",
        tmp_path / "whole",
        steps=5,
        checkpoint={"every": 2},
        val={"every": 4},
        log={"report": False},
    )
    config = override(config, **CASES[case](files))
    if world > 1:
        config = override(config, batch_size=8, micro_batch_size=2, device="cpu")
    if config.policy.type == "pi05":
        config = override(
            config, data={"response": "task"} if config.policy.response_tokens else {}
        )
    assert run.train(config) == run.DONE
    cut = replace(config, output_dir=str(tmp_path / "cut"))
    if config.init_from:
        shutil.copytree(config.init_from, tmp_path / "start")
        cut = replace(cut, init_from=str(tmp_path / "start"))
    with resumed.watched(tmp_path / "cut", {3: resumed.send(signal.SIGTERM)}):
        assert run.train(cut) == run.STOPPED
    shutil.rmtree(tmp_path / "start", ignore_errors=True)  # a checkpoint needs no other file
    if world == 1:
        assert run.resume(RunDir(tmp_path / "cut").settings()) == run.DONE
    else:
        assert in_ranks(world, resume_sharded, tmp_path / "cut", shards) == [run.DONE] * world
    same_run(tmp_path / "whole", tmp_path / "cut")
