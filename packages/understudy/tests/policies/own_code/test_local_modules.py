"""Local modules of a policy's file: one digest covers them, and only named ones are imported."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.policies.own_code import trusted, types
from understudy.policies.own_code.sources import read_sources
from understudy.policies.registry import PolicyType, policy_type

MAKE = """
from understudy.policies import PolicySettings, PolicyType

def made(value):
    MINE = PolicyType(PolicySettings, lambda config, normalization: value)
    return MINE
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a user who has named no code yet; modules of this test are forgotten behind
    it.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(trusted.NAMED, "")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "making_it.py").write_text(MAKE)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def value_of(kind: str) -> object:
    return policy_type(kind).build(None, {})


def forget() -> None:
    types._types.clear()
    os.environ[trusted.NAMED] = ""


def test_digest_of_a_file_alone_is_its_sha256(place: Path) -> None:
    (place / "alone.py").write_text("import json, torch, understudy.policies\n")
    done = subprocess.run(
        ["sha256sum", place / "alone.py"], capture_output=True, text=True, check=True
    )
    assert read_sources(place / "alone.py").digest == done.stdout.split()[0]


FORMS = {
    "import": ("import helper_a\nVALUE = helper_a.VALUE", "helper_a.py"),
    "from": ("from helper_b import VALUE", "helper_b.py"),
    "in a function": (
        "def f():\n    import helper_c\n    return helper_c.VALUE\nVALUE = f()",
        "helper_c.py",
    ),
    "literal": (
        "import importlib\nVALUE = importlib.import_module('helper_d').VALUE",
        "helper_d.py",
    ),
    "package": ("from package_e.sub.deep import VALUE", "package_e/sub/deep.py"),
    "relative": ("from package_f import VALUE", "package_f/inner.py"),
    "transitive": ("from helper_g import VALUE", "deeper_g.py"),
    "package without init": ("from package_h.part import VALUE", "package_h/part.py"),
    "computed": (
        "import importlib\nVALUE = importlib.import_module('part_i.' + 'mod').VALUE",
        "other/part_i/mod.py",
    ),
    "library": ("import pkgutil\nVALUE = pkgutil.resolve_name('part_k:VALUE')", "other/part_k.py"),
    "run": ("import runpy\nVALUE = runpy.run_module('part_l')['VALUE']", "other/part_l.py"),
    "path": ("import sys\nsys.path.insert(0, FOLDER)\nfrom part_j import VALUE", "other/part_j.py"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_local_module_is_not_imported(
    place: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, module = FORMS[form]
    (place / module).parent.mkdir(parents=True, exist_ok=True)
    for package in ("package_e", "package_e/sub"):
        if module.startswith(package):
            (place / package / "__init__.py").write_text("")
    if form == "relative":
        (place / "package_f" / "__init__.py").write_text("from .inner import VALUE\n")
    if form == "transitive":
        (place / "helper_g.py").write_text("from deeper_g import VALUE\n")
    is_found = form in ("computed", "library", "run")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place / "other")] if is_found else [*sys.path])
    (place / module).write_text("VALUE = 1\n")
    file = place / "mine.py"
    file.write_text(
        f"from making_it import made\n{text.replace('FOLDER', repr(str(place / 'other')))}\n"
        "MINE = made(VALUE)\n"
    )
    kind = types.name_by_hand(f"{file}:MINE")
    assert value_of(kind) == 1
    child = [
        sys.executable,
        "-c",
        f"from understudy.policies.registry import policy_type as p; p({kind!r})",
    ]
    extra = (
        {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{place / 'other'}"} if is_found else {}
    )
    forget()
    assert subprocess.run(child, check=False, env={**os.environ, **extra}, cwd="/").returncode == 0
    (place / module).write_text(f"open({str(place / 'ran')!r}, 'w')\nVALUE = 2\n")
    assert (
        subprocess.run(
            child, check=False, env={**os.environ, **extra}, cwd="/", capture_output=True
        ).returncode
        != 0
    )
    assert not (place / "ran").exists()


def test_compiled_files_beside_the_code_are_not_used(place: Path) -> None:
    (place / "mine.py").write_text(
        "from making_it import made\nfrom helper_k import VALUE\nMINE = made(VALUE)\n"
    )
    (place / "helper_k.py").write_text("VALUE = 2\n")
    compile_it = (
        "import py_compile as p, sys; p.compile(sys.argv[1], "
        "invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    subprocess.run(
        [sys.executable, "-c", compile_it, place / "helper_k.py"], check=True, env=environment
    )
    (place / "helper_k.py").write_text("VALUE = 1\n")
    assert value_of(types.name_by_hand(f"{place / 'mine.py'}:MINE")) == 1


def test_a_changed_module_is_imported_anew_after_it_is_named(place: Path) -> None:
    (place / "mine.py").write_text(
        "from making_it import made\nfrom helper_l import VALUE\nMINE = made(VALUE)\n"
    )
    for value in (1, 2):
        (place / "helper_l.py").write_text(f"VALUE = {value}  # {value * 'x'}\n")
        assert value_of(types.name_by_hand(f"{place / 'mine.py'}:MINE")) == value


def test_equal_names_of_two_policies_are_an_error(place: Path) -> None:
    for name in ("first", "second"):
        (place / name).mkdir()
        (place / name / "mine.py").write_text(
            f"{MAKE}\nfrom helper_m import VALUE\nMINE = made(VALUE)\n"
        )
        (place / name / "helper_m.py").write_text(f"VALUE = {name!r}\n")
    assert value_of(types.name_by_hand(f"{place / 'first' / 'mine.py'}:MINE")) == "first"
    with pytest.raises(ValueError, match="helper_m"):
        policy_type(types.name_by_hand(f"{place / 'second' / 'mine.py'}:MINE"))


def test_installed_packages_and_folders_of_other_kinds_are_left_alone(place: Path) -> None:
    (place / "mine.py").write_text(
        f"{MAKE}\ntry:\n    import wandb_of_nobody\nexcept ImportError:\n"
        "    wandb_of_nobody = None\n"
        "import numpy\nMINE = made((wandb_of_nobody, numpy))\n"
    )
    (place / "wandb_of_nobody").mkdir()
    (place / "numpy.py").write_text("raise SystemExit\n")
    import numpy

    assert value_of(types.name_by_hand(f"{place / 'mine.py'}:MINE")) == (None, numpy)
    assert not read_sources(place / "mine.py").modules


def test_a_users_own_imports_are_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "mine.py").write_text(f"{MAKE}\nMINE = made(1)\n")
    policy_type(types.name_by_hand(f"{place / 'mine.py'}:MINE"))
    forget()
    (place / "my_own_program.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(place)
    import my_own_program  # type: ignore[import-not-found]

    assert my_own_program.VALUE == 3


def test_list_keeps_the_lines_of_processes_at_once(place: Path) -> None:
    add = (
        "import sys; from pathlib import Path; from understudy.policies.own_code import trusted "
        "as t\n"
    )
    add += "for number in range(50): t.trust(f'{sys.argv[1]}-{number}', Path('/x.py'))"
    processes = [subprocess.Popen([sys.executable, "-c", add, str(number)]) for number in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert all(
        trusted.is_trusted(f"{process}-{number}", Path("/x.py"))
        for process in range(3)
        for number in range(50)
    )
    folder = trusted.folder()
    assert folder is not None
    assert stat.S_IMODE((folder / trusted.LIST).stat().st_mode) == 0o600
    assert not trusted.is_trusted("0-0", Path("/y.py"))


def test_list_that_others_may_write_is_not_believed(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted.trust("a", Path("/x.py"))
    forget()
    folder = trusted.folder()
    assert folder is not None
    (folder / trusted.LIST).chmod(0o666)
    assert not trusted.is_trusted("a", Path("/x.py"))
    assert "600" in caplog.text


@pytest.mark.parametrize("home", ["", "relative", None])
def test_home_is_never_below_the_working_directory(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's folder may hold a list of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    folder = trusted.folder()
    assert folder is None or (folder.is_absolute() and tmp_path not in folder.parents)


def test_a_typed_digest_must_be_that_of_the_file(place: Path) -> None:
    (place / "mine.py").write_text(f"{MAKE}\nMINE = made(1)\n")
    with pytest.raises(ValueError, match="sha256"):
        types.name_by_hand(f"{place / 'mine.py'}:MINE#{'0' * 64}")
    assert types.import_type(types.name_by_hand(f"{place / 'mine.py'}:MINE"), PolicyType)
