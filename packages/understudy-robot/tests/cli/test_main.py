"""The command line: quick help, settings from files and flags, one-line errors, exit codes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path

import pytest
import torch

from understudy.config.train import TrainConfig
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train.checkpoint.run_dir import RunDir, RunInUseError
from understudy.train.loop import TrainingStalled
from understudy_base import DatasetError, SourceError, create_folder, temporary_folder
from understudy_kit import dump_yaml, load, render_page
from understudy_kit.cli import commands, main
from understudy_kit.cli.arguments import settings as parse
from understudy_kit.config.help import groups
from understudy_kit.signals import Interrupted
from understudy_robot.cli.record import RecordConfig

HEAVY = ("torch", "pyarrow", "av", "matplotlib", "mujoco", "PIL", "gymnasium", "scipy")
FROZEN = ("dataset", "files", "normalisation", "order", "policy", "settings")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("cli") / "dataset")


def run(*arguments: object) -> int:
    try:
        return main.main([str(argument) for argument in arguments])
    except SystemExit as exit:  # help
        return int(exit.code or 0)


def replace_command(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let the function of a command raise `error`."""
    function = main.find_commands()[name].function

    @wraps(function)
    def fails(_: object) -> int:
        raise error

    monkeypatch.setattr(sys.modules[function.__module__], function.__name__, fails)


def test_help_of_every_command_imports_nothing_heavy() -> None:
    """Checks imported modules rather than seconds, so that a busy machine cannot fail it. Nor does
    the launcher.
    """
    code = f"""
import contextlib, io, sys
from understudy_kit.cli import main as cli
with contextlib.redirect_stdout(io.StringIO()) as out:
    cli.main(["--help"])
    assert "pydantic" not in sys.modules
    assert cli.main(["train", "--launch", "0", "--data.root", "d"]) == cli.WRONG_INPUT
    for command in [[], *[name.split() for name in cli.COMMANDS]]:
        try:
            code = cli.main([*command, "--help"])
        except SystemExit as exit:
            code = exit.code
        assert not code, (command, code)
for command in cli.COMMANDS:
    assert command in out.getvalue(), command
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_main_without_command_or_with_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == main.WRONG_INPUT
    assert run("--help") == 0
    assert run("--version") == 0
    assert "understudy 0." in capsys.readouterr().out
    assert run("trian") == main.WRONG_INPUT
    assert "did you mean 'train'" in capsys.readouterr().err
    assert run("order", "explode") == main.WRONG_INPUT
    assert "did you mean 'order explain'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rollout", "validate", "report", "check", "resume", "record"])
def test_commands_name_required_settings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == main.WRONG_INPUT
    error = capsys.readouterr().err
    assert "required" in error
    assert "Traceback" not in error


def test_train_reads_a_file_and_flags_over_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(dump_yaml(tiny_config(data, tmp_path / "r")))
    assert run("train", file, "--steps", 2, "--optim.lr", "1e-4", "--val.every", 0) == 0
    saved = RunDir(tmp_path / "r").settings()
    assert (saved.steps, saved.optim.lr, saved.batch_size) == (2, 1e-4, 4)
    assert (tmp_path / "r/report.html").exists()
    output = capsys.readouterr().out
    assert "report: " in output
    assert f"policy: {tmp_path / 'r/policy'}" in output
    assert run("train", file) == main.WRONG_INPUT  # there is a run already
    assert "understudy resume" in capsys.readouterr().err
    assert run("resume", tmp_path / "r", "--steps", 4, "--log.no-report") == 0
    assert [r["step"] for r in series(tmp_path / "r")] == [1, 2, 3, 4]
    assert run("resume", tmp_path / "r", "--seed", 9) == main.WRONG_INPUT
    assert "seed: 7 -> 9" in capsys.readouterr().err
    assert run("validate", tmp_path / "r", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4


def test_warnings_are_one_line_without_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    assert main.main(["--version"]) == 0
    assert (
        warnings.formatwarning("a camera is left out", UserWarning, "x.py", 3)
        == "note: a camera is left out\n"
    )
    assert (
        warnings.formatwarning("old", DeprecationWarning, "x.py", 3) == "DeprecationWarning: old\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data.root", "{}/nowhere"], "no such folder"),
        (["train", "--data.root", "{}"], "meta/info.json"),
        (
            ["train", "--data.root", "{}", "--steps", "0"],
            "steps: input should be greater than or equal to 1, not 0",
        ),
        (["train", "--steps", "many"], "--steps: must be a whole number, not 'many'"),
        (["train", "--optim.lr", "fast"], "--optim.lr: must be a number, not 'fast'"),
        (
            ["train", "--micro-batch-size", "few"],
            "--micro-batch-size: must be a whole number, not 'few'",
        ),
        (["train", "--steps"], "--steps: its value is missing"),
        (["train", "--data.sources", "no/such"], "data.sources: there is no/such"),
        (["train", "--policy.image-size", "--steps", "3"], "--policy.image-size"),
        (["train", "--policy.image-size", "wide", "3"], "--policy.image-size: must be"),
        (["train", "--data.root", "{}", "--optim.lr", "inf"], "optim.lr"),
        (["train", "--data.root", "{}", "--loader.memory", "lots"], "memory 'lots'"),
        (
            ["train", "--data.root", "{}", "--checkpoint.keep-best", "macro", "--val.every", "0"],
            "val.every is 0",
        ),
        (
            [
                "train",
                "--data.root",
                "{}",
                "--checkpoint.keep-best",
                "macro",
                "--data.val-fraction",
                "0",
            ],
            "data.val_fraction is 0",
        ),
        (["train", "--stepz", "3"], "--steps"),
        (["train", "{}/none.yaml"], "cannot be read"),
        (["train", "no/such"], "--data.root no/such"),
        (
            ["record", "--output-dir", "{}/d", "--env", "mujoco"],
            "env: unknown environment 'mujoco'; known: tabletop, recall, metaworld, libero_spatial",
        ),
        (["record", "--episodes", "3"], "--output-dir FOLDER"),
        (["order", "show"], "unknown command 'order show'"),
        (["check", "{}/nowhere"], "no such folder"),
        (["resume", "{}"], "no run here"),
        (["report", "{}"], "no run here"),
        (["validate", "{}"], "no run here"),
        (["validate", "{}", "--checkpoint", "bast"], "did you mean best?"),
        (["train", "--mode", "polcy"], "did you mean policy?"),
        (["export", "{}"], "no run here"),
        (["rollout", "{}"], "no"),
    ],
)
def test_errors_have_no_traceback(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*[argument.format(tmp_path) for argument in arguments]) == main.WRONG_INPUT
    printed = capsys.readouterr()
    assert message in printed.err + printed.out
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["{}/g1.cfg"], ".json"),
        (["{}"], "--data.root {}"),
        (["--dataset.repo_id", "someone/something"], "--data.root hf://datasets/"),
        (["--num_workers=3"], "--loader.num-threads"),
        (["--policy.use_amp=true"], "--precision bf16"),
        (["--no-overwrite"], "--output-dir"),
        (["--lr", "1e-3"], "--optim.lr"),
        (["more"], "--name value"),
        (["--seed", "1", "later.yaml"], "later.yaml: a settings file comes before the flags"),
        (["--compile", "yes"], "--compile: takes no value but true or false"),
        (
            ["--seed", "1", "--checkpoint.async-save=1"],
            "--checkpoint.async-save: takes no value but true or false",
        ),
    ],
)
def test_settings_of_other_libraries_are_translated(
    typed: list[str], expected: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", *[word.format(data) for word in typed]) == main.WRONG_INPUT
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert expected.format(data) in output


@pytest.mark.parametrize("command", [("push", "x"), ("record",), ("serve", "x")])
def test_commands_without_training_settings_translate_none(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--dataset.repo_id", "a/b") == main.WRONG_INPUT
    output = capsys.readouterr().err
    assert "--dataset.repo_id" in output
    assert "--data.root" not in output


@pytest.mark.parametrize(
    "wrong",
    [["--policy.type", "smolvla"], ["--policy.type=smolvla"], ["--optim.lr", "fast"]],
    ids=["policy", "policy=", "value"],
)
def test_another_error_hides_no_translation(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--dataset.repo_id=a/b",
        "--policy.dtype",
        "bfloat16",
        *wrong,
        "--num_workers",
        3,
        "--stepz",
        3,
    ]
    assert run("train", *arguments) == main.WRONG_INPUT
    output = capsys.readouterr().err
    for hint in (
        wrong[-1].partition("=")[2] or wrong[-1],
        "--data.root hf://",
        "--precision",
        "--loader.num-threads",
    ):
        assert hint in output


def test_mistyped_run_is_named_with_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs/table").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for command in ("validate", "resume", "report"):
        assert run(command, "runs/tabel") == main.WRONG_INPUT
        assert "runs/table" in capsys.readouterr().err


def test_unknown_policy_type_is_translated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--policy.type", "act") == main.WRONG_INPUT
    assert "did you mean 'lerobot-act'?" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--steps", "3"], ["--steps=3"]])
def test_profile_refuses_a_flag_without_effect(
    flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    # the file of a run has its own number of steps
    file.write_text("steps: 7\ndata: {root: somewhere}\n")
    assert run("profile", file, *flag) == main.WRONG_INPUT
    assert "--profile.steps" in capsys.readouterr().err
    assert run("profile", file, "--profile.steps", 3, "--print-config") == 0
    assert "steps: 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        ["check", "{}", "--depth", "rows", "--page", "page.html"],
        ["check", "{}", "--depth", "rows", "--skip-bad", "bad.json"],
    ],
    ids=lambda command: " ".join(command[:1] + command[-2:-1]),
)
def test_outputs_are_replaced_only_on_request(
    command: list[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "page.html": render_page("", "", []),
        "bad.json": '{"bad_episodes": []}',
    }.items():
        Path(name).write_text(text)
    before = {path.name: path.read_text() for path in Path().iterdir()}
    words = [word.format(data) for word in command]
    assert run(*words) == main.WRONG_INPUT
    assert "--overwrite" in capsys.readouterr().err
    assert {path.name: path.read_text() for path in Path().iterdir()} == before
    assert run(*words, "--overwrite") == 0
    assert Path(words[-1]).read_text() != before[words[-1]]
    Path(words[-1]).write_text("mine")
    assert run(*words, "--overwrite") == main.WRONG_INPUT
    assert Path(words[-1]).read_text() == "mine"


def test_train_suggests_resume_for_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r/checkpoints").mkdir(parents=True)
    assert run("train", tmp_path / "r") == main.WRONG_INPUT
    assert f"understudy resume {tmp_path / 'r'}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "validate", "export", "report", "rollout"])
def test_commands_of_a_run_refuse_a_dataset(
    data: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, data) == main.WRONG_INPUT
    output = capsys.readouterr().err
    assert "dataset" in output
    assert f"--output-dir {data}" not in output


def test_train_refuses_to_write_into_a_dataset(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "dataset"
    shutil.copytree(data, own)
    before = sorted(own.rglob("*"))
    assert (
        run("train", "--data.root", own, "--output-dir", own, "--steps", 1, "--batch-size", 2)
        == main.WRONG_INPUT
    )
    assert "another --output-dir" in capsys.readouterr().err
    assert [path for path in sorted(own.rglob("*")) if path.name != ".lock"] == before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DatasetError("no rows"), main.WRONG_INPUT),
        (SourceError("no permission"), main.WRONG_INPUT),
        (SourceError("no answer", transient=True), main.FAILED),
        (RunInUseError("another process"), main.FAILED),
        (TrainingStalled("max_skipped_steps: 5"), main.FAILED),
    ],
)
def test_exit_code_tells_whether_a_scheduler_may_try_again(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, "train", error)
    assert run("train", "--data.root", "x") == code
    assert capsys.readouterr().err == f"understudy train: {error}\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_wrong_value_is_one_line_on_any_terminal(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "understudy", "train", "--steps", "many"],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == main.WRONG_INPUT
    assert done.stderr.splitlines() == [
        b"understudy train: --steps: must be a whole number, not 'many'"
    ]


@pytest.mark.parametrize("behind", [[], ["--steps", "2"], [""]])
@pytest.mark.parametrize(
    "flag", ["--data.episodes", "--data.exclude_episodes", "--optim.freeze", "--optim.lr-scale"]
)
def test_list_flag_without_values_is_refused(
    flag: str, behind: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unset shell variable would train on all episodes, including the excluded ones."""
    assert (
        run("train", "--data.root", data, "--output-dir", tmp_path / "r", flag, *behind)
        == main.WRONG_INPUT
    )
    assert flag in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--checkpoint.async-save", "false", "--compile", "true"], (False, True)),
        (["--checkpoint.async_save=False", "--compile=true", "--seed", "3"], (False, True)),
        (["--checkpoint.no-async-save", "--compile"], (False, True)),
        (["--checkpoint.async-save", "TRUE", "--compile=false"], (True, False)),
    ],
)
def test_booleans_take_true_and_false(words: list[str], values: tuple[bool, bool]) -> None:
    found = parse(
        "train", TrainConfig, commands.COMMANDS["train"], ["--data.root", "there", *words]
    )
    assert (found.checkpoint.async_save, found.compile) == values


def test_booleans_of_another_policy_take_true_and_false() -> None:
    for value in ("true", "false"):
        words = ["--data.root", "there", "--policy.type", "pi05", "--policy.state-history", value]
        words += ["--policy.history", "0.1"]
        assert parse(
            "train", TrainConfig, commands.COMMANDS["train"], words
        ).policy.state_history == (value == "true")


@pytest.mark.long
def test_long_help_comes_in_the_pager_of_a_terminal() -> None:
    ours, terminal = os.openpty()
    command = [sys.executable, "-m", "understudy", "train", "--help"]
    environment = {**os.environ, "PAGER": "head -20", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, env=environment):
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # the terminal ends with its last process
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert shown.count(b"\n") == 20
    assert b"most used:" in shown
    assert b"--data.root" in shown


def test_print_config_prints_the_complete_settings_of_a_json_file(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    file.write_text(
        json.dumps({"steps": 3, "data": {"root": str(data)}, "output_dir": str(tmp_path / "r")})
    )
    assert run("train", file, "--seed", 5, "--print-config") == 0
    whole = tmp_path / "whole.yaml"
    whole.write_text(capsys.readouterr().out)
    assert not (tmp_path / "r").exists()
    read = load(TrainConfig, whole)
    assert (read.steps, read.seed, read.data.root, read.batch_size) == (
        3,
        5,
        str(data),
        TrainConfig().batch_size,
    )
    file.write_text("{")
    assert run("train", file) == main.WRONG_INPUT
    assert capsys.readouterr().err.count("\n") == 1


def test_help_of_resume_names_the_run_and_shows_its_settings(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("resume", "--help") == 0
    assert "resume RUN" in capsys.readouterr().out
    RunDir(tmp_path / "r").begin(
        replace(tiny_config(data, tmp_path / "r"), steps=4321), {key: {} for key in FROZEN}
    )
    assert run("resume", tmp_path / "r", "--help") == 0
    assert "4321" in capsys.readouterr().out


def test_help_and_order_without_arguments_print_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("help") == 0
    assert "resume RUN" in capsys.readouterr().out
    for words in (["order"], ["order", "--help"], ["order", "-h"], ["help", "order"]):
        assert run(*words) == 0
        assert "usage: understudy order explain" in capsys.readouterr().out


def test_debug_prints_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", tmp_path, "--debug") == main.WRONG_INPUT
    assert "Traceback" in capsys.readouterr().err


def test_internal_error_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, "check", ZeroDivisionError("ours"))
    assert run("check", "x") == main.FAILED
    assert "ZeroDivisionError: ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("profile", ("--micro-batch-size", "--activation-checkpoint", "--precision")),
        ("rollout", ("--num-envs",)),
        ("check", ()),
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 1 GiB.\n"
            "x"
        ),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you "
            "tried to ..."
        ),
    ],
)
def test_full_device_is_one_line_with_settings(
    error: Exception,
    command: str,
    settings: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_command(monkeypatch, command, error)
    arguments = ["--data.root", "d"] if command == "profile" else ["x"]
    assert run(command, *arguments) == main.FAILED
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "total capacity" not in output
    assert all(setting in output for setting in settings)
    for setting in settings:
        assert setting in {
            own.flag().split()[0]
            for group in groups(main.find_commands()[command].settings_class)
            for own in group.settings
        }


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_train_without_memory_leaves_a_folder_for_another_try(
    device: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(dump_yaml(tiny_config(data, tmp_path / "r")))

    def full(*_: object, **__: object) -> None:
        (tmp_path / "r/rollouts/due").mkdir(parents=True)
        if device == "cpu":
            torch.empty(1 << 60)  # more than any machine has
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr("understudy.train.session.run_steps", full)
        assert run("train", file, "--steps", 1) == main.FAILED
    assert "--micro-batch-size" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert run("train", file, "--steps", 1, "--val.every", 0, "--log.no-report") == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (Interrupted(signal.SIGINT), 130),
        (Interrupted(signal.SIGTERM), 143),
        (OSError(28, "No space left on device"), main.FAILED),
        (MemoryError(), main.FAILED),
    ],
)
def test_exit_codes_of_external_errors(
    error: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replace_command(monkeypatch, "check", error)
    assert run("check", "x") == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["bench", "export", "import", "publish", "record", "rollout", "edit"]
)
def test_sigterm_ends_a_command_after_its_cleanup(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    function = main.find_commands()[name].function
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # a default handler would end the tests

    @wraps(function)
    def terminated(_: object) -> int:
        with temporary_folder(), create_folder(tmp_path / "out"):
            os.kill(os.getpid(), signal.SIGTERM)
        return 0

    monkeypatch.setattr(sys.modules[function.__module__], function.__name__, terminated)
    monkeypatch.setattr(main, "read_settings", lambda *_: None)
    try:
        assert main.main([name, "x"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "size"),
    [(["32"], (32, 32)), (["32", "48"], (32, 48)), (["32", "--steps", "3"], (32, 32))],
)
def test_an_image_size_of_one_number_is_a_square(words: list[str], size: tuple[int, int]) -> None:
    arguments = ["--data.root", "there", "--policy.image-size", *words]
    found = parse("train", TrainConfig, commands.COMMANDS["train"], arguments)
    assert found.policy.image_size == size


@pytest.mark.parametrize(
    ("words", "metadata", "scale"),
    [
        (
            ["--data.prompt-metadata", "quality", "0.2", "success", "0"],
            {"quality": 0.2, "success": 0.0},
            {"text": 0.5},
        ),
        (["--optim.lr_scale", "vision", "0.1"], {"success": 0.1}, {"vision": 0.1}),
        (["--seed", "1"], {"success": 0.1}, {"text": 0.5}),
    ],
)
def test_flag_replaces_a_mapping_of_the_file(
    words: list[str], metadata: dict[str, float], scale: dict[str, float], tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "data: {root: d, prompt_metadata: {success: 0.1}}\noptim: {lr_scale: {text: 0.5}}\n"
    )
    read = main.read_settings("train", [str(file), *words])
    assert (read.data.prompt_metadata, read.optim.lr_scale) == (metadata, scale)


def test_an_image_size_that_is_one_number_stays_one() -> None:
    words = ["--output-dir", "there", "--image-size", "48"]
    found = parse("record", RecordConfig, commands.Command(), words)
    assert found.image_size == 48


def test_help_lists_each_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [name for names in commands.GROUPS.values() for name in names]
    assert sorted(listed) == sorted(commands.COMMANDS)
    assert run("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(f"{title}:" in lines for title in commands.GROUPS)


@pytest.mark.parametrize(
    ("guess", "name"),
    [
        ("merge", "edit"),
        ("delete", "edit"),
        ("split", "edit"),
        ("convert", "import"),
        ("compare", "report"),
        ("diff", "report"),
        ("eval", "rollout"),
        ("info", "check"),
        ("inspect", "check"),
        ("visualize", "view"),
        ("viz", "view"),
        ("upload", "push"),
        ("download", "pull"),
        ("Merge", "edit"),
        ("finetune", "train"),
    ],
)
def test_a_wrong_guess_gets_the_command(
    guess: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(guess, "x") == main.WRONG_INPUT
    assert f"understudy {name}" in capsys.readouterr().err


def test_guesses_name_commands_and_hide_none() -> None:
    assert not commands.GUESSES.keys() & {name.split()[0] for name in commands.COMMANDS}
    for remedy in commands.GUESSES.values():
        for call in remedy.split("understudy ")[1:]:
            assert call.split()[0].strip(",;") in commands.COMMANDS, remedy
