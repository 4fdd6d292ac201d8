"""Commands and flags in pages, notebooks, scripts and texts of the source: found, and read by the
program's parsers.

Nothing runs. The functions `…_faults` give one line for each command, flag or value that the
program would refuse. Names in capitals, variables and `…` stand for values that fit.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from understudy.config.other_trainers import read_hints
from understudy.policies.registry import own_type_names, policy_type
from understudy.testing.docs import ROOT, blocks
from understudy_base import ConfigError, MissingExtraError
from understudy_kit import SUFFIXES, complete, flag_of, read_file
from understudy_kit.cli import main
from understudy_kit.cli.commands import COMMANDS, find_commands
from understudy_kit.cli.help_texts import LAUNCH, general
from understudy_kit.config.flags import Setting, list_settings, read_flags
from understudy_kit.config.help import members, negation_of

VALUES = ("1", "0.5", "8GB", "1-2", "x", "hf://owner/name", "x=1", "0.1 0.2", "x 1", "1 2")
"""Values of which one fits in place of a placeholder, beside the choices of a setting."""
OTHERS = {
    "sbatch": "--nodes --gpus-per-node --time --exclusive --cpus-per-task --partition --requeue "
    "--signal",
    "accelerate": "--num_processes --num_machines --machine_rank --config_file --multi_gpu "
    "--mixed_precision "
    "--use_fsdp --use_deepspeed --zero_stage --fsdp_sharding_strategy --deepspeed_config_file "
    "--dynamo_backend --gradient_accumulation_steps --gradient_clipping --main_process_ip "
    "--main_process_port",
    "deepspeed": "--deepspeed --local_rank",
    "kubectl": "--from-file --from-literal --follow --selector",
    "sky": "--num-nodes --env",
    "ray": "--address --head",
    "git": "--hook-type --diff-filter --name-only",
    "docker": "--rm --gpus --shm-size --ipc",
    "tensorboard": "--logdir",
    "hf": "--revision --local-dir --repo-type",
    "pip": "--no-deps --extra-index-url --index-url --upgrade --with --no-build-isolation",
    "robot_client": "--server_address --policy_type --pretrained_name_or_path --robot.type "
    "--robot.port --robot.id "
    "--robot.cameras --task --actions_per_chunk --fps --inference_latency --obs_queue_timeout",
    "lerobot": "--steps --loader.discover_packages_path --loader.decoded_cache --config_path "
    "--policy.path --resume",
    "openpi": "--direct_subtask",
    "pytest": "--lerobot-conformance",
    "lerobot-conformance": "--only --isolation",
}
"""Flags of programs that are not ours, and have no parser here."""
SHELL = """
    export printf cat cd . source set for do done if then else fi while exec time env echo mkdir rm
    cp mv ls sleep apt-get sudo pip python python3 python3.12 uv git curl tar docker podman make
    pytest wait kill trap srun hf sky END kubectl ray torchrun accelerate sbatch squeue scancel
    lerobot-train lerobot-conformance nohup head tail tee grep test [
"""
"""First words of commands in shell blocks."""
LAUNCHERS = {"-m", "--", "srun", "exec", "time", "nohup", "env", "run", "do", "then", "else"}
"""Words after which the word `understudy` is the program."""
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*(\.\w+)?|.*[$…<{].*")
OWN_CODE = re.compile(r"[\w/]+\.py:\w+")
FLAG = re.compile(r"(?<![\w\-/.'])--(?=[a-z])[\w.-]*\w(?![-\w])")
MAY_NAME_A_COMMAND = re.compile(
    r"`[\s\"'frbn\\]*(understudy|make|torchrun|sbatch|python|scripts/|--|\{|\$)|-m understudy "
)
"""Without it, a source has no inline code that `text_faults` reads."""
FOLDERS = ("scripts", "examples", "recipes", "packages", "lab")
PROSE = {"--name", "--setting", "--policy.hidden"}
"""Flags that stand for any, and of the policy that docs/own_policies.md writes."""


# -- reading by the program ------------------------------------------------------------------------


@cache
def flags_of(name: str) -> dict[str, list[tuple[Setting, str]]]:
    """Flags of a command, negations too -> settings and the type of policy that has each, "" for
    every one.
    """
    cls = find_commands()[name].settings_class
    found: dict[str, list[tuple[Setting, str]]] = {}
    has_policy = any(setting.path == "policy.type" for setting in list_settings(cls))
    for kind in ("", *(own_type_names() if has_policy else ())):
        for setting in list_settings(cls, policy_type(kind).settings if kind else None):
            for flag in (
                flag_of(setting.path),
                *([negation_of(setting.path)] if setting.kind is bool else []),
            ):
                if not setting.positional:
                    found.setdefault(flag, []).append((setting, kind))
    return found


@cache
def foreign_flags() -> set[str]:
    """Flags of other programs that a page may name: other trainers, torchrun, Python scripts of
    this repository.
    """
    from torch.distributed.run import get_args_parser

    found = {f"--{name}" for name in read_hints()}
    for action in get_args_parser()._actions:
        found |= set(action.option_strings)
    for folder in (*FOLDERS, "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(
                re.findall(r"(?:add_argument|addoption)\(\s*\"(--[\w-]+)\"", path.read_text())
            )
    found |= {flag for line in OTHERS.values() for flag in line.split()}
    return {flag.replace("_", "-") for flag in found}


@cache
def own_flags() -> set[str]:
    """Flags of every command."""
    entries = [entry for entry, _ in (*general(), LAUNCH)]
    named = re.findall(r"--[\w-]+", " ".join(entries))
    return {
        *named,
        "--version",
        "--verbose",
        *(flag for name in COMMANDS for flag in flags_of(name)),
    }


def choices_of(setting: Setting) -> list[str]:
    """Values of which a setting has one."""
    return [
        str(c)
        for kind in members(setting.kind)
        if get_origin(kind) is Literal
        for c in get_args(kind)
    ]


def candidates(setting: Setting, words: Sequence[str]) -> Iterator[list[str]]:
    """Values of a flag with others in place of its placeholders."""
    for value in (*choices_of(setting), *VALUES):
        yield [value if PLACEHOLDER.fullmatch(word) else word for word in words]
    for value in VALUES[-3:]:
        yield value.split()


def fill(name: str, words: Sequence[str], kind: str, whole: bool) -> list[str]:
    """Words of a command with values that fit in place of placeholders, and of those that a text
    leaves out.
    """
    cls = find_commands()[name].settings_class
    filled = list[str]()
    rest = list(words)
    flags = flags_of(name)
    free = next(
        (entry for entry in list_settings(cls) if entry.positional and choices_of(entry)), None
    )
    while rest:
        word = rest.pop(0)
        flag, equals, text = word.partition("=")
        entries = flags.get(flag.replace("_", "-"), [])
        setting = next((entry for entry, _ in entries), None)
        if not word.startswith("--"):
            filled.append(choices_of(free)[0] if free and PLACEHOLDER.fullmatch(word) else word)
            continue
        if setting is None or setting.kind is bool:
            filled.append(word)
            continue
        values = [text] if equals else []
        while not equals and rest and not re.match(r"--?[a-zA-Z]", rest[0]):
            values.append(rest.pop(0))
        if not values and not whole:
            values = ["…"]
        chosen = [f"--policy.type={kind}"] if kind and flag.startswith("--policy.") else []
        if any(PLACEHOLDER.fullmatch(value) for value in values):
            fitting = (
                v for v in candidates(setting, values) if not _refusal(cls, [*chosen, flag, *v])
            )
            values = next(fitting, values)
        filled += [flag, *values]
    return filled


@cache
def known_flags() -> set[str]:
    """Flags of any program that a text may name."""
    return own_flags() | foreign_flags() | PROSE


def _refusal(
    cls: type, words: list[str], content: dict[str, Any] | None = None, whole: bool = False
) -> str:
    """Message about settings; the same ones are read once."""
    return _refusal_once(cls, tuple(words), json.dumps(content or {}, default=str), whole)


@cache
def _refusal_once(cls: type, words: tuple[str, ...], settings: str, whole: bool) -> str:
    content = json.loads(settings)
    words = _without_sources(words)
    try:
        try:
            config = read_flags(cls, words, content)
        except MissingExtraError:  # the defaults that the policy brings
            config = read_flags(cls, words, content, new=False)
        if whole:
            complete(config)
    except ConfigError as error:
        return str(error)
    return ""


def _without_sources(words: Sequence[str]) -> list[str]:
    """Words without `--data.sources` and its values, folders that a text only names."""
    kept = list(words)
    if "--data.sources" in kept:
        first = kept.index("--data.sources")
        ends = [place for place in range(first + 1, len(kept)) if kept[place].startswith("--")]
        kept[first : ends[0] if ends else len(kept)] = ["--data.root", "x"]
    return kept


def refusal(words: Sequence[str], folder: Path = ROOT, whole: bool = False) -> str:
    """Message of the program for the words after `understudy`; "" where it would begin its work.

    Args:
        words: the command, with placeholders.
        folder: where the files are that it names.
        whole: whether nothing is missing, as in a block of commands; a text may name a part.
    """
    words = _without_any([word for word in (_stripped(word) for word in words) if word])
    if not words or words[0] in ("COMMAND", "--version", "--help", "-h"):
        return ""
    if words[0] == "help":
        words = [*words[1:], "--help"]
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), "")
    if not name:
        return (
            ""
            if words in (["order"], ["fast"], ["tokenizer"]) or words[0] == "__complete"
            else main._unknown(" ".join(words[:1]))
        )
    command = COMMANDS[name]
    rest = words[len(name.split()) :]
    cls = find_commands()[name].settings_class
    if "--launch" in rest:
        if not command.launchable:
            return f"{name}: --launch: not of this command"
        place = rest.index("--launch")
        if place + 1 < len(rest) and PLACEHOLDER.fullmatch(rest[place + 1]):
            rest[place + 1] = "2"
        rest = main.split_launch(rest if place + 1 < len(rest) else [*rest, "2"])[1]
    rest = main.take_option(rest, "--policy-code")[1]
    rest = [word for word in rest if word not in ("--help", "-h", "--print-config", "--debug")]
    content, kinds = _content(name, command.argument, rest, folder, whole)
    messages = [_refusal(cls, fill(name, rest, kinds[0], whole), content, whole)]
    for kind in kinds[1:]:
        if not messages[-1]:
            return ""
        policy = {"type": kind}
        messages.append(
            _refusal(cls, fill(name, rest, kind, whole), {**content, "policy": policy}, whole)
        )
    return "" if not messages[-1] else messages[0]


def _content(
    name: str, argument: str, rest: list[str], folder: Path, whole: bool
) -> tuple[dict[str, Any], list[str]]:
    """Settings of the file or run that a command names, which leaves `rest`, and the types of
    policy it may have.
    """
    paths = {setting.path for setting in list_settings(find_commands()[name].settings_class)}
    is_training = {"data.root", "output_dir"} <= paths
    content: dict[str, Any] = {"data": {"root": "d"}, "output_dir": "run"} if is_training else {}
    if name == "resume":
        rest[:] = rest[1:] if rest and not rest[0].startswith("-") else rest
        return content, ["", *own_type_names()]
    named = "FILE" in argument and bool(rest) and not rest[0].startswith("-")
    if named and (Path(rest[0]).suffix in SUFFIXES or PLACEHOLDER.fullmatch(rest[0])):
        file = folder / rest.pop(0)
        return (read_file(file), [""]) if file.is_file() else (content, ["", *own_type_names()])
    chosen = any(word.startswith("--policy.type") for word in rest)
    return ({} if whole else content), ([""] if whole or chosen else ["", *own_type_names()])


def _without_any(words: list[str]) -> list[str]:
    """Words without `--SETTING VALUE`, which stands for any, and without code of its own and the
    settings of that.
    """
    kept = list[str]()
    rest = list(words)
    own = any(OWN_CODE.fullmatch(word) for word in words)
    known = own_flags()
    while rest:
        word = rest.pop(0)
        any_flag = re.match(r"--[A-Z]", word) or (
            own and word.startswith("--policy.") and word not in known
        )
        if any_flag or (word.startswith("--") and rest and OWN_CODE.fullmatch(rest[0])):
            rest = rest[1:] if rest and not rest[0].startswith("--") else rest
        else:
            kept.append(word)
    return kept


def _stripped(word: str) -> str:
    """A word without the brackets of an optional one; "" for `…`."""
    if word.startswith("["):
        word = word[1:]
    if word.endswith("]") and "[" not in word:
        word = word[:-1]
    return "" if word in ("…", "...", "$OPTIONS") else word


# -- commands of a shell ---------------------------------------------------------------------------


def commands(block: str) -> Iterator[list[str]]:
    """Words of each simple command of a shell block; variables stay, those alone that are options
    are left out.
    """
    block = re.sub(r"\$\{\w+:\+([^}]*)\}", r"\1", block.replace("\\\n", " "))
    block = re.sub(r"<<'?(\w+)'?.*?^\1$", "", block, flags=re.DOTALL | re.MULTILINE)
    for line in block.splitlines():
        line = re.sub(r"(?:^|(?<=\s))#.*$", "", line)
        line = re.sub(r"(?<!\S)(?<!-)\$[A-Z_]+(?=\s|$)", _unless_a_value, line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            tokens = list(lexer)
        except ValueError:
            continue  # a text of several lines in quotes
        command = list[str]()
        for token in [*tokens, ";"]:
            if set(token) <= set("();<>|&"):
                if command:
                    yield command
                command = ["<"] if set(token) <= set("<>") else []
            else:
                command.append(token)


def _unless_a_value(found: re.Match[str]) -> str:
    before = found.string[: found.start()].split()
    return found[0] if before and (before[-1].startswith("--") or len(before) == 1) else ""


def command_faults(words: list[str], folder: Path, whole: bool) -> Iterator[str]:
    """One line for each fault of a simple command: a program, a file or a target that is missing,
    and our settings.
    """
    shown = " ".join(words)
    while words and re.match(r"\w+=", words[0]):
        yield from value_faults(words.pop(0), folder)
    if not words or words[0] == "<" or (not whole and not _is_program(words[0])):
        return  # a path alone may be one of another project
    program = words[0]
    places = [
        place
        for place, word in enumerate(words)
        if word == "understudy" and (place == 0 or words[place - 1] in LAUNCHERS)
    ]
    if places:
        if message := refusal(words[places[0] + 1 :], folder, whole):
            yield f"{shown}: {message}"
        words = words[: places[0]]
    elif program == "sbatch" and (script := next((w for w in words if w.endswith(".sbatch")), "")):
        run, *rest = words[words.index(script) + 1 :] or ["RUN"]
        if message := refusal(["train", *rest, "--output-dir", run], folder, whole):
            yield f"{shown}: {message}"
        words = words[: words.index(script) + 1]
    elif program.endswith("start-or-resume") and len(words) > 2:
        if message := refusal(
            ["train", words[2], *words[3:], "--output-dir", words[1]], folder, whole
        ):
            yield f"{shown}: {message}"
        words = words[:1]
    if program == "torchrun":
        yield from torchrun_faults(words[1:], shown)
    if program == "make":
        targets = set(re.findall(r"^([\w.-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        targets_here = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        yield from (f"{shown}: no target {word}" for word in targets_here if word not in targets)
    for word in words:
        yield from value_faults(word, folder)
        if re.match(rf"(\./)?({'|'.join(FOLDERS)}|tests)/[\w./-]+$", word) and not _is_file(word):
            yield f"{shown}: no file {word}"
    script = next((word for word in words if word.endswith(".py") and (ROOT / word).is_file()), "")
    if script and program not in ("torchrun", "sbatch"):
        yield from script_faults(ROOT / script, words[words.index(script) + 1 :], shown)


def _is_file(path: str) -> bool:
    return (ROOT / path).exists() or re.search(r"/[A-Z]+(\.\w+)?$", path) is not None


def script_faults(script: Path, words: Sequence[str], shown: str) -> Iterator[str]:
    """Flags that neither a script of this repository nor a module beside it, nor `train`, has."""
    near = {
        flag
        for path in script.parent.rglob("*.py")
        for flag in re.findall(r"\"(--[\w-]+)\"", path.read_text())
    }
    if "read_flags" in script.read_text() or "read_settings" in script.read_text():
        near |= own_flags()
    for word in words:
        flag = word.partition("=")[0]
        if word.startswith("--") and flag not in near:
            yield f"{shown}: {script.name} has no {flag}"


def torchrun_faults(words: list[str], shown: str) -> Iterator[str]:
    """A flag that torchrun refuses, by its own parser."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    known = {flag.replace("_", "-") for action in parser._actions for flag in action.option_strings}
    ends = next(
        (place for place, word in enumerate(words) if word.endswith(".py") or word == "-m"),
        len(words),
    )
    for word in words[:ends]:
        if word.startswith("--") and word.partition("=")[0].replace("_", "-") not in known:
            yield f"{shown}: torchrun has no {word}"
    if ends < len(words) and words[ends].endswith(".py"):
        yield from script_faults(ROOT / words[ends], words[ends + 1 :], shown)


def value_faults(word: str, folder: Path) -> Iterator[str]:
    """Faults of the flags that a word keeps for `train`, as a default or as `NAME="--steps 5"`."""
    found = re.search(r"(?:=|:-)(--[a-z][^}]* [^}]*)", word)
    if found is not None and not found[1].startswith("--launch"):
        yield from flag_faults(shlex.split(found[1]), folder)


@cache
def programs() -> set[str]:
    """Programs of the packages of this repository, and those of a shell block."""
    found = {"understudy", *SHELL.split()}
    for path in (ROOT / "pyproject.toml", *(ROOT / "packages").glob("*/pyproject.toml")):
        found |= set(tomllib.loads(path.read_text())["project"].get("scripts", {}))
    return found


def _is_program(word: str) -> bool:
    return word in programs() or (ROOT / word).is_file()


# -- texts -----------------------------------------------------------------------------------------


def flag_faults(words: list[str], folder: Path = ROOT) -> Iterator[str]:
    """One line where no command takes the flags and values that stand alone in a text."""
    shown = " ".join(words)
    words = [part for word in words if (part := _stripped(word))]
    words = [*words[0].split("=", 1), *words[1:]] if words else []
    first = words[0].partition("=")[0].replace("_", "-") if words else ""
    if not first or first in foreign_flags() or first in PROSE or re.match(r"--[A-Z]", words[0]):
        return
    if first in ("--help", "--version", "--debug", "--print-config", "--policy-code"):
        return
    names = [name for name in COMMANDS if first in flags_of(name)]
    if first == "--launch":
        names = ["train"]
    if not names:
        yield f"{shown}: no command has {first}"
        return
    if words[1:] and not any(not refusal([*name.split(), *words], folder) for name in names):
        yield f"{shown}: {refusal([*names[0].split(), *words], folder)}"


def spans(text: str) -> list[str]:
    """Inline code of a text, each as one line."""
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


def text_faults(text: str, folder: Path = ROOT) -> Iterator[str]:
    """Faults of the inline code of a text."""
    for span in spans(text):
        span = re.sub(r"\$?\$\{?(\w+)\}?", r"$\1", span)
        if re.match(
            r"(understudy|make|torchrun|sbatch|python|scripts/\S+)( |$)|.* -m understudy ", span
        ):
            for words in commands(span):
                yield from command_faults(words, folder, whole=False)
        elif re.match(r"--[\w.-]+([ =]|$)", span):
            for words in commands(span):
                yield from flag_faults(words, folder) if words[0].startswith("--") else ()


def page_faults(text: str, folder: Path = ROOT) -> list[str]:
    """Faults of a page: blocks of a shell as whole commands, inline code, flags."""
    found = list[str]()
    for kind, block in blocks(text):
        if kind in ("sh", "bash", "shell", "console"):
            for words in commands(block):
                if (
                    words[0] != "<"
                    and not re.match(r"\w+=", words[0])
                    and not _is_program(words[0])
                ):
                    found.append(f"{' '.join(words)}: no program {words[0]}")
                found += command_faults(words, folder, whole=True)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found += text_faults(prose, folder)
    found += unknown_flags(text)
    return list(dict.fromkeys(found))


def unknown_flags(text: str) -> list[str]:
    """One line for each flag in a text, code or not, that no program has."""
    return [
        f"{flag}: a flag of no command"
        for flag in FLAG.findall(text)
        if flag.replace("_", "-") not in known_flags()
    ]


def notebook_faults(path: Path) -> list[str]:
    """Faults of a notebook: its texts as pages, and the commands that its code runs."""
    found = list[str]()
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            found += page_faults(text)
            continue
        for line in re.findall(r"^\s*(?:!|%run )(.*)$", text, re.MULTILINE):
            for words in commands(re.sub(r"\$(\w+)", r"$\1", line)):
                found += command_faults(words, ROOT, whole=True)
    return found


def python_faults(path: Path) -> list[str]:
    """Faults of the texts of a Python file: docstrings, messages, help; and of flags in those of
    the package.
    """
    found = list[str]()
    is_ours = "src" in path.parts and {"testing", "understudy-conformance"}.isdisjoint(path.parts)
    source = path.read_text()
    if not MAY_NAME_A_COMMAND.search(source) and not (is_ours and FLAG.search(source)):
        return found
    for text in python_texts(source):
        found += [fault for fault in text_faults(text) if is_ours or "understudy" in fault]
        found += unknown_flags(text) if is_ours else []
    return list(dict.fromkeys(found))


def python_texts(source: str) -> Iterator[str]:
    """Texts of the source of a Python file, with `…` in place of the values of formatted ones."""
    inside = set[int]()
    for node in ast.walk(ast.parse(source)):  # a text before its parts
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.value


def settings_file_faults(path: Path) -> list[str]:
    """Faults of a YAML file of a recipe: commands of containers, and scripts."""
    found = list[str]()

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("command"), list):
                words = [str(word) for word in (*value["command"], *value.get("args", ()))]
                found.extend(command_faults(words, path.parent, whole=True))
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            for item in value:
                visit(item)
        elif isinstance(value, str) and "\n" in value:
            for words in commands(value):
                found.extend(command_faults(words, ROOT, whole=False))

    for document in yaml.safe_load_all(path.read_text()):
        visit(document)
    return found
