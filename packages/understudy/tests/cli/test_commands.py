"""Commands by entry points: those of this program, of a distribution that is missing, of other
packages.
"""

import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from understudy.testing.docs import ROOT
from understudy_base import PIP_LINES
from understudy_kit.cli import commands, main

Install = Callable[..., None]
GREET = """
from contextlib import contextmanager
from dataclasses import dataclass
from understudy_kit import Command, Positional, describe

@dataclass(frozen=True)
class GreetConfig:
    '''Greet somebody.'''

    who: Positional[str] = ""
    '''Name of a person.'''
    times: int = 1
    '''Number of greetings.'''

@describe(Command(argument="WHO", extra="remote"))
def greet(config: GreetConfig) -> int:
    print(f"hello {config.who} " * config.times)
    return 3

def plain(config: GreetConfig) -> None:
    print(f"plain {config.who}")

@contextmanager
def loudly(text):
    print(f"enter {text}")
    yield
    print(f"leave {text}")

def check_mood():
    from understudy_base.errors import ConfigError
    raise ConfigError("MOOD: bad: must be good")

WRONG = 3
def of_nothing():
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution with some entry points and a module of its own."""

    def add(name: str, points: str, group: str = "understudy.commands", code: str = GREET) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        (folder / f"module_of_{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, f"module_of_{name}", raising=False)

    return add


def run(*arguments: object) -> int | str | None:
    try:
        return main.main([str(argument) for argument in arguments])
    except SystemExit as exit:  # help
        return exit.code


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the distribution of some commands be missing."""
    found = commands.find_entry_points(commands.GROUP)
    kept = {name: point for name, point in found.items() if name not in names}
    monkeypatch.setattr(commands, "find_entry_points", lambda _: kept)


def test_the_table_has_each_command_and_its_distribution() -> None:
    homes = {}
    for file in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(file.read_text())["project"]
        for name in project.get("entry-points", {}).get(commands.GROUP, {}):
            homes[name.replace(".", " ")] = project["name"].removeprefix("understudy-")
    assert homes == {name: row.wheel for name, row in commands.COMMANDS.items()}
    assert set(homes.values()) <= PIP_LINES.keys()


@pytest.mark.parametrize("words", [["data"], ["--help"], []], ids=" ".join)
@pytest.mark.parametrize("name", ["view", "order explain"])
def test_a_command_whose_distribution_is_missing_prints_its_pip_line(
    name: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    without(monkeypatch, name.replace(" ", "."))
    assert run(*name.split(), *words) == main.WRONG_INPUT
    pip_line = PIP_LINES[commands.COMMANDS[name].wheel]
    error = capsys.readouterr().err
    assert error == f"understudy {name}: this command is not installed: {pip_line}\n"


def test_help_marks_a_command_whose_distribution_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch, "view", "serve")
    assert run("--help") == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "(not installed)" in line]
    assert [line.split()[0] for line in marked] == ["view", "serve"]
    assert run("check", "--help") == 0


def test_a_command_of_another_package_is_listed_and_runs(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("hello", "greet = module_of_hello:greet\nsay.plainly = module_of_hello:plain")
    assert run("--help") == 0
    listed = capsys.readouterr().out
    for name in ("greet", "say plainly"):
        line = next(line for line in listed.splitlines() if line.strip().startswith(name))
        assert line.endswith("hello 1.5")
    assert "module_of_hello" not in sys.modules
    assert run("greet", "--help") == 0
    assert "usage: understudy greet WHO" in capsys.readouterr().out
    assert run("greet", "Ada", "--times", "2") == 3
    assert capsys.readouterr().out == "hello Ada hello Ada \n"
    assert run("say", "plainly", "Ada") == 0
    assert capsys.readouterr().out == "plain Ada\n"
    assert run("greet", "--timez", 2) == main.WRONG_INPUT
    assert "did you mean --times?" in capsys.readouterr().err
    assert run("gret") == main.WRONG_INPUT
    assert "did you mean 'greet'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("module_of_sick:greet", "import nowhere_to_be_found", "nowhere_to_be_found"),
        ("module_of_sick:greet", "", "greet"),
        ("module_of_sick_x:greet", "", "module_of_sick_x"),
        ("module_of_sick:WRONG", GREET, "takes one argument"),
        ("module_of_sick:of_nothing", GREET, "takes one argument"),
    ],
)
@pytest.mark.parametrize("words", [[], ["--help"]], ids=" ".join)
def test_a_broken_entry_point_names_itself(
    target: str,
    code: str,
    said: str,
    words: list[str],
    install: Install,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("sick", f"cough = {target}", code=code)
    assert run("cough", *words) == main.WRONG_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in ("understudy cough: ", "'cough'", target, "sick 1.5", said):
        assert part in error
    assert run("cough", "--debug", *words) == main.WRONG_INPUT
    assert "Traceback" in capsys.readouterr().err
    assert run("--help") == 0


@pytest.mark.parametrize("spelled", ["order.explain", "order explain"])
def test_a_name_that_two_packages_claim_is_an_error_of_this_name(
    spelled: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "module_of_rival:greet"
    install("rival", f"{spelled} = {target}\ncheck = {target}")
    for name in ("check", "order explain"):
        assert run(*name.split(), "--help") == main.WRONG_INPUT
        error = capsys.readouterr().err
        assert error.startswith(f"understudy {name}: ")
        assert error.count("\n") == 1
        for part in ("rival 1.5", "understudy", "uninstall"):
            assert part in error
    assert run("view", "--help") == 0


def test_an_option_of_a_package_holds_while_a_command_runs(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("loud", "loudly = module_of_loud:loudly", group="understudy.options")
    install("hello", "greet = module_of_hello:greet")
    assert run("greet", "Ada", "--loudly", "very") == 3
    assert capsys.readouterr().out == "enter very\nhello Ada \nleave very\n"
    assert run("greet", "--help") == 0
    assert "--loudly TEXT" in capsys.readouterr().out
    assert run("greet", "--policy-code", "nowhere.py") == main.WRONG_INPUT
    assert "--policy-code 'nowhere.py': there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("module_of_sick:nowhere", "nowhere"),
        ("module_of_sick:check_mood", "MOOD: bad: must be good"),
        ("module_of_sick:greet", "TypeError"),
    ],
)
def test_versions_of_a_broken_package_are_its_error(
    target: str, said: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of the others stay: they are what one reads to find the reason."""
    assert run("--version", "-v") == 0
    plain = capsys.readouterr().out
    install("sick", f"a-sick = {target}", group="understudy.versions")
    assert run("--version", "-v") == main.WRONG_INPUT
    printed = capsys.readouterr()
    first, broken, *others = printed.out.splitlines(keepends=True)
    assert first + "".join(others) == plain
    assert broken.startswith("a-sick ")
    assert said in broken
    assert printed.err == ""


def test_a_variable_is_checked_before_a_command(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("moody", "MOOD = module_of_moody:check_mood", group="understudy.variables")
    assert run("check", "--help") == 0
    assert "module_of_moody" not in sys.modules
    monkeypatch.setenv("MOOD", "bad")
    capsys.readouterr()
    assert run("check", "data") == main.WRONG_INPUT
    assert capsys.readouterr().err == "understudy check: MOOD: bad: must be good\n"


TOOLS = ("check", "edit", "view", "ranges", "select", "import", "order explain")


def test_help_of_a_tool_imports_no_policies() -> None:
    """Nor anything else of the distributions above the tools."""
    wheels = runpy.run_path(str(ROOT / "scripts/seams.py"))["find_modules"]()
    code = f"""
import sys
from understudy_kit.cli.main import main
for name in {TOOLS!r}:
    try:
        main([*name.split(), "--help"])
    except SystemExit:
        pass
print("\\n".join(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = {line for line in done.stdout.splitlines() if line.startswith("understudy")}
    above = [wheels[wheel] for wheel in ("understudy", "robot", "zoo")]
    files = {name: path for modules_of in above for name, path in modules_of.items()}
    code_above = {name for name, path in files.items() if path.stem != "__init__"}
    assert len(modules) > 10
    assert modules & code_above == set()
