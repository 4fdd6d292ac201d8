"""Every command, flag and value in pages, notebooks, recipes, docstrings, messages and help is read
by the program.

`support/command_lines.py` finds and reads them; nothing runs.
"""

from pathlib import Path

import pytest

from support.command_lines import (
    command_faults,
    commands,
    notebook_faults,
    page_faults,
    python_faults,
    refusal,
    settings_file_faults,
    text_faults,
    unknown_flags,
)
from understudy.testing.docs import ROOT
from understudy_base.testing.refusals import refused
from understudy_kit.cli import main
from understudy_kit.cli.commands import COMMANDS, GUESSES
from understudy_kit.cli.help_texts import EXAMPLES

OUTSIDE = ("README.md", "CONTRIBUTING.md", "examples/README.md")
FOUND = [
    page for pattern in ("docs", "recipes/*", "packages/*") for page in ROOT.glob(f"{pattern}/*.md")
]
PAGES = [*(ROOT / page for page in OUTSIDE), *sorted(FOUND)]
FOLDERS = ("examples", "recipes", "scripts", "packages", "lab")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_commands_of_a_page_are_read(page: Path) -> None:
    assert page_faults(page.read_text()) == []


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("examples/notebooks/*.ipynb")), ids=lambda path: path.stem
)
def test_commands_of_a_notebook_are_read(path: Path) -> None:
    assert notebook_faults(path) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("recipes/*/*.yaml")), ids=lambda path: path.name)
def test_commands_of_a_recipe_are_read(path: Path) -> None:
    assert settings_file_faults(path) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_in_texts_of_python_are_read(folder: str) -> None:
    found = {str(path): python_faults(path) for path in (ROOT / folder).rglob("*.py")}
    assert len(found) > 0
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_of_the_help_are_read(name: str) -> None:
    lines = EXAMPLES[name]
    words = [words for line in lines for words in commands(line) if words[0] == "understudy"]
    assert len(words) == len(lines)
    assert [fault for command in words for fault in command_faults(command, ROOT, whole=True)] == []


def test_remedies_of_guessed_commands_are_commands() -> None:
    found = [
        part.split(",")[0]
        for remedy in GUESSES.values()
        for part in remedy.split("understudy ")[1:]
    ]
    words = [part.split(" for ")[0].split(" with ")[0].split() for part in found]
    assert len(words) > len(set(GUESSES.values()))
    assert {" ".join(command): refused for command in words if (refused := refusal(command))} == {}


@pytest.mark.parametrize(
    "page",
    [
        "`understudy order audit RUN`",
        "`understudy merge A B OUT`",
        "`understudy train --optim.learning-rate 1`",
        "`understudy rollout RUN --launch 2`",
        "`understudy check PATH --depth deep`",
        "`--attention error`",
        "`--attention=error`",
        "`--policy.config.pretrained_backbone_weights null`",
        "`--optim.lr fast`",
        "`--no-such-flag`",
        "a flag --no-such-flag in prose",
        "`make no-such-target`",
        "`python scripts/no_such_script.py`",
        "`python lab/benchmarks/order_compare.py --no-such-flag`",
        "```sh\nunderstudy order audit RUN\n```",
        "```sh\nunderstudy train CONFIG.yaml \\\n  --batch-size 8 \\\n  --precision fp12\n```",
        "```sh\nunderstudy train CONFIG.yaml --data.frame-weights-in nowhere --steps 10\n```",
        '```sh\nexport DATA=d\nunderstudy check "$DATA" --json && understudy validate RUN --gop 2\n'
        "```",
        "```sh\nunderstudy edit data/a data/b --split | tee log\n```",
        "```sh\nRUN=r torchrun --nproc-per-node 2 -m understudy train c.yaml --lora.ranks 4\n```",
        "```sh\ntorchrun --no-such-flag 2 -m understudy train c.yaml\n```",
        "```sh\nsbatch --nodes 2 scripts/slurm/train.sbatch RUN c.yaml --step 4\n```",
        "```sh\nunderstudy-no-such-program data\n```",
        'export OPTIONS="${OPTIONS:---policy.type pi05 --policy.weight x}"'.join(
            ("```sh\n", "\n```")
        ),
        "```sh\nunderstudy train recipes/droid/flow.yaml --data.root d --output-dir r "
        "--policy.fast x\n```",
    ],
)
def test_broken_commands_are_found(page: str) -> None:
    assert len(page_faults(page)) > 0


@pytest.mark.parametrize(
    "page",
    [
        "`understudy resume RUN --SETTING VALUE`, `understudy edit SRC [SRC …] OUT`, `understudy "
        "train …`",
        "`--optim.lr FLOAT`, `--policy.weights FOLDER`, `--gpu-memory`, `--compile true`, "
        "`--log.no-report`",
        "`--batch_size 8`, `--dataset.repo_id` of LeRobot, `--nproc-per-node 8` of torchrun",
        '```sh\nunderstudy train "$CONFIG" ${EPISODES:+--data.episodes $EPISODES} --batch-size '
        '"$B" $X # a\n```',
        "```sh\nunderstudy check data/a | head -n 3 > log; for x in 1 2; do understudy report "
        '"r$x"; done\n```',
    ],
)
def test_placeholders_stand_for_values_that_fit(page: str) -> None:
    assert page_faults(page) == []


def test_text_of_the_source_is_read_as_a_page_is() -> None:
    assert list(text_faults("set `--attention error`")) != []
    assert unknown_flags("did you mean --data.roots?") == ["--data.roots: a flag of no command"]


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (
            ["--policy.type", "lerobot-act", "--policy.config.dim_model", "64"],
            "--policy.config dim_model VALUE",
        ),
        (["--policy.type", "lerobot-act", "--policy.config.a.b=1"], "--policy.config a.b VALUE"),
        (["--optim.loss-weights.flow", "0.5"], "--optim.loss-weights flow VALUE"),
        (["--optim.lr_scale.vision", "0.5"], "--optim.lr-scale vision VALUE"),
        (["--policy.config.dim_model", "64"], "--policy.type lerobot-act"),
    ],
)
def test_a_name_inside_a_mapping_has_the_form_that_is_taken(words: list[str], form: str) -> None:
    from understudy_base import ConfigError

    with refused(form, kind=ConfigError):
        main.read_settings("train", ["--data.root", "d", "--output-dir", "r", *words])
