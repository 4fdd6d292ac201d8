"""Entry points of installed packages, found and loaded by `entry_points.py`."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy_base import EntryPointError, MissingExtraError, find_entry_points
from understudy_kit.testing.packages import install

GROUP = "understudy.toys"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_name_is_listed_without_an_import_and_loaded(site: Path) -> None:
    code = "class Ball:\n    colour = 'red'\n"
    install(
        site,
        "my_balls-1.2",
        f"[{GROUP}]\nball = toys_my_balls:Ball\nred=toys_my_balls:Ball.colour\n",
        code,
    )
    points = find_entry_points(GROUP)
    assert list(points) == ["ball", "red"]
    assert points["ball"].distribution == "my-balls 1.2"
    assert "toys_my_balls" not in sys.modules
    assert points["ball"].load().colour == "red"
    assert points["red"].load() == "red"
    assert find_entry_points("understudy.others") == {}


def test_the_list_is_that_of_importlib(site: Path) -> None:
    text = f"""
    # a comment = of:nothing
    [console_scripts]
    toys = toys_a:main

    [{GROUP}]
    ball = toys_a:Ball [extra]
    with space=toys_a : Ball
    [{GROUP}.more]
    kite = toys_a:Kite
    """
    install(site, "a-1", text)
    install(site, "B.c-2", f"[{GROUP}]\ndoll = toys_b:Doll\n")
    for group in (GROUP, f"{GROUP}.more"):
        expected = importlib.metadata.entry_points(group=group)
        found = {
            name: point.target.partition(":") for name, point in find_entry_points(group).items()
        }
        assert found == {point.name: (point.module, ":", point.attr) for point in expected}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "Ball"),
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("raise RuntimeError('toys')", "RuntimeError: toys"),
        ("def", "SyntaxError"),
    ],
)
def test_a_broken_one_names_itself_and_its_distribution(site: Path, code: str, said: str) -> None:
    install(site, "broken-3.1", f"[{GROUP}]\nball = toys_broken:Ball\n", code)
    with pytest.raises(EntryPointError) as raised:
        find_entry_points(GROUP)["ball"].load()
    for part in ("'ball'", GROUP, "toys_broken:Ball", "broken 3.1", said):
        assert part in str(raised.value)
    sys.modules.pop("toys_broken", None)


def test_a_missing_extra_keeps_its_pip_line(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "understudy_base.optional_packages._is_missing", lambda module: module == "rosbags_gone"
    )
    monkeypatch.setitem(
        sys.modules["understudy_base.optional_packages"].EXTRAS, "import", ("rosbags_gone",)
    )
    install(site, "bags-1", f"[{GROUP}]\nbag = toys_bags:Bag\n", "import rosbags_gone")
    with pytest.raises(MissingExtraError, match=r"understudy-tools\[import\]"):
        find_entry_points(GROUP)["bag"].load()


def test_two_distributions_with_one_name_are_an_error_of_this_name(site: Path) -> None:
    install(
        site,
        "first-1",
        f"[{GROUP}]\nball = toys_first:Ball\ndoll = toys_first:Doll\n",
        "Doll = 'doll'",
    )
    install(site, "second-2", f"[{GROUP}]\nball = toys_second:Ball\n")
    points = find_entry_points(GROUP)
    assert points["doll"].load() == "doll"
    with pytest.raises(EntryPointError) as raised:
        points["ball"].load()
    for part in ("'ball'", "first 1", "second 2"):
        assert part in str(raised.value)


def test_a_distribution_counts_once_and_the_first_folder_wins(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = site.parent / "older"
    install(older, "Toy_Box-1", f"[{GROUP}]\nball = toys_old:Ball\nold = toys_old:Old\n")
    install(site, "toy.box-2", f"[{GROUP}]\nball = toys_new:Ball\n")
    monkeypatch.setattr(sys, "path", [str(site), str(older), str(site), str(site / "none.zip")])
    assert {name: str(point.target) for name, point in find_entry_points(GROUP).items()} == {
        "ball": "toys_new:Ball"
    }


def test_what_an_interrupted_upgrade_leaves_is_no_distribution(site: Path) -> None:
    """Pip renames the folder of the old version, NAME-1.dist-info, to ~AME-1.dist-info until it is
    done.
    """
    install(site, "~oys-1", f"[{GROUP}]\nball = toys_old:Ball\nold = toys_old:Old\n")
    install(site, "toys-2", f"[{GROUP}]\nball = toys_new:Ball\n")
    found = find_entry_points(GROUP)
    assert {name: (point.target, point.rivals) for name, point in found.items()} == {
        "ball": ("toys_new:Ball", ())
    }


@pytest.mark.parametrize(("newest", "target"), [("9", "toys_nine:Ball"), ("10", "toys_ten:Ball")])
def test_of_two_versions_in_one_folder_the_one_written_last_counts(
    site: Path, newest: str, target: str
) -> None:
    install(site, "toy_box-9", f"[{GROUP}]\nball = toys_nine:Ball\n")
    install(site, "toy.box-10", f"[{GROUP}]\nball = toys_ten:Ball\n")
    for version, info in (("9", "toy_box-9.dist-info"), ("10", "toy.box-10.dist-info")):
        time = 2_000 if version == newest else 1_000
        os.utime(site / info, (time, time))
    (found,) = find_entry_points(GROUP).values()
    assert (found.target, found.distribution) == (target, f"toy-box {newest}")


def test_a_package_that_is_installed_meanwhile_is_found(site: Path) -> None:
    assert find_entry_points(GROUP) == {}
    install(site, "late-1", f"[{GROUP}]\nball = toys_late:Ball\n")
    assert list(find_entry_points(GROUP)) == ["ball"]


def test_listing_is_cheap() -> None:
    """The program lists its commands for each help: the slow library is not imported."""
    code = (
        "import sys; from understudy_base.entry_points import find_entry_points as f; "
        "f('understudy.policies'); "
    )
    code += "print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def write_tree(tree: Path, project: str, lines: str) -> str:
    """Write the pyproject.toml of a source tree; returns its folder of sources."""
    (tree / "src").mkdir(parents=True, exist_ok=True)
    text = f'[project]\nname = "{project}"\n[project.entry-points."{GROUP}"]\n{lines}\n'
    (tree / "pyproject.toml").write_text(text)
    return str(tree / "src")


def test_a_source_tree_has_the_entry_points_of_its_pyproject(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tree(site / "another", "another", 'ball = "toys_tree:Ball"')
    monkeypatch.setattr(sys, "path", [str(site), other])
    assert find_entry_points(GROUP) == {}
    tree = write_tree(site / "tree", "understudy-toys", 'ball = "toys_tree:Ball"')
    monkeypatch.setattr(sys, "path", [str(site), tree])
    (found,) = find_entry_points(GROUP).values()
    assert (found.name, found.target) == ("ball", "toys_tree:Ball")
    # an older one
    install(site, "understudy_toys-0", "[console_scripts]\nunderstudy = toys_tree:main\n")
    assert list(find_entry_points(GROUP)) == ["ball"]
    install(site, "other-1", f"[{GROUP}]\nkite = toys_other:Kite\n")
    assert list(find_entry_points(GROUP)) == ["ball", "kite"]
    install(site, "rival-1", f"[{GROUP}]\nball = toys_rival:Ball\n")
    with pytest.raises(EntryPointError, match="rival 1"):
        find_entry_points(GROUP)["ball"].load()


@pytest.mark.parametrize("project", ["understudy", "understudy-toys"])
def test_a_source_tree_is_read_in_place_of_its_installed_distribution(
    site: Path, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    """By PYTHONPATH the code of the tree runs, and an editable install keeps the list of its
    day.
    """
    tree = write_tree(site / "tree", project, 'ball = "toys_tree:Ball"')
    older_tree = write_tree(site / "older", project, 'kite = "toys_older:Kite"')
    monkeypatch.setattr(sys, "path", [str(site), tree, older_tree])
    lines = "ball = toys_understudy:Ball\nkite = toys_understudy:Kite\n"
    install(site, f"{project.replace('-', '_')}-1", f"[{GROUP}]\n{lines}")
    (found,) = find_entry_points(GROUP).values()
    assert (found.name, found.target, found.rivals) == ("ball", "toys_tree:Ball", ())
