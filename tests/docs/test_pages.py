"""The code of docs/: Python runs, settings load, names and messages exist, links lead to files.

Commands are read in test_commands.py.
"""

import ast
import json
import re
import runpy
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import understudy as us
from understudy.config.train import TrainConfig
from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.policies.inference import load_policy
from understudy.testing.docs import ROOT, code, run_python
from understudy.testing.pi05 import GOLDEN
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.features import parse_features
from understudy_data.datasets.selection.where import Where
from understudy_data.datasets.stats import summary
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import complete, load
from understudy_kit.cli import main
from understudy_tools.imports.settings import read_mapping

DOCS = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "recipes").glob("*/*.md")),
    *sorted((ROOT / "lab/journal").glob("*.md")),
]
PROGRAMS = ("understudy", "torchrun", "accelerate", "sbatch")
"""Programs whose commands are read. Those of the tutorials run, in tests/docs/test_tutorials.py."""


def blocks(page: str, language: str) -> list[str]:
    """Code blocks of one language."""
    return code(DOCS[page], language)


def commands(page: str) -> list[list[str]]:
    """Words of each command of a page."""
    lines = [
        line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()
    ]
    return [
        words
        for line in lines
        if (words := shlex.split(line, comments=True)) and words[0] in PROGRAMS
    ]


def execute(page: str) -> dict[str, Any]:
    """Run the first Python block; returns its variables."""
    return run_python(ROOT / f"docs/{page}.md", {}, slice(0, 1))


# -- commands --------------------------------------------------------------------------------------


def test_datasets_page_shows_every_setting_of_edit_that_changes_data() -> None:
    assert len(commands("datasets")) >= 20
    assert {words[1] for words in commands("datasets")} == {"edit", "segment", "select", "train"}


def test_launching_page_lists_the_launched_commands() -> None:
    assert {words[0] for words in commands("launching")} == set(PROGRAMS)
    launched = {name for name, command in main.COMMANDS.items() if command.launchable}
    (listed,) = re.findall(r"`--launch N` works for (.*?)\.", DOCS["launching"])
    assert set(re.findall(r"`(\w+)`", listed)) == launched


def test_frame_weights_page_commands_set_the_weights() -> None:
    settings = [main.read_settings(words[1], words[2:]).data for words in commands("frame_weights")]
    assert [(data.frame_weights, data.frame_weights_in) for data in settings] == [
        ("weights.parquet", "order"),
        ("quality", "both"),
    ]


# -- settings and files ----------------------------------------------------------------------------


def load_settings(page: str, file: Path, number: int = 0) -> TrainConfig:
    """Settings of one YAML block of a page, by way of a file."""
    file.write_text(blocks(page, "yaml")[number])
    return complete(replace(load(TrainConfig, file), output_dir="run"))


def test_settings_of_the_pages_load(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(blocks("normalization", "yaml")[0])
    assert load(TrainConfig, tmp_path / "one.yaml").data.normalize["gripper"] == "identity"
    sources = load_settings("normalization", tmp_path / "normalization.yaml", 1).data.sources
    assert [source.delta_action_dims[-1:] for source in sources] == [(5,), (5,), ()]
    data = load_settings("mixtures", tmp_path / "mixtures.yaml").data
    assert data.names() == ("table", "arms")
    assert (
        TrainConfig(data=data, mode={"policy": 3.0, "inverse_dynamics": 1.0}).modes.weights()[
            "policy"
        ]
        == 3 / 4
    )


def test_datasets_page_conditions_are_conditions() -> None:
    [block] = re.findall(r"all texts\):\n\n```\n(.*?)```", DOCS["datasets"], flags=re.DOTALL)
    assert [Where(line).names for line in block.splitlines()] == [
        ["success", "quality"],
        ["operator", "mistakes"],
        ["task", "seconds"],
        ["name with spaces"],
    ]


def test_normalization_page_has_the_modes_and_the_rows_of_the_code() -> None:
    assert f"{summary.ROWS:,} rows" in DOCS["normalization"]
    assert [
        mode for mode in get_args(summary.Mode) if f"| `{mode}` |" not in DOCS["normalization"]
    ] == []


def test_importing_page_mapping_imports_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py", reason="needs the extra `import`")
    monkeypatch.chdir(tmp_path)
    small, large = blocks("importing", "yaml")
    Path("arm.yaml").write_text(small)
    with h5py.File("arm.hdf5", "w") as file:
        file["camera"] = np.zeros((5, 32, 32, 3), np.uint8)
        file["joints"], file["commands"] = np.ones((5, 4)), np.ones((5, 4))
    (command,) = [words for words in commands("importing") if "arm.yaml" in words]
    assert main.main(command[1:]) == 0
    assert us.Catalog.open(command[3]).num_frames == 5
    Path("arm.yaml").write_text(large)
    assert read_mapping("arm.yaml").fps == 20


def test_sensors_page_declares_depth_that_is_read() -> None:
    feature = parse_features({"depth": json.loads(blocks("sensors", "json")[0])}, "the page")[
        "depth"
    ]
    assert (feature.unreadable, feature.pixels.dtype, feature.pixels.channels) == ("", "float32", 1)


# -- Python ----------------------------------------------------------------------------------------


def test_frame_weights_page_example_has_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "dataset", Spec(lengths=(6, 9, 4), cameras=()))
    names = execute("frame_weights")
    counts = {(e, f): 3 if f < 2 else 1 for e, length in ((0, 6), (2, 4)) for f in range(length)}
    assert names["epoch"] == sum(counts.values())
    _, episode, frame = names["order"].locate(np.arange(names["epoch"]))
    assert Counter(zip(episode.tolist(), frame.tolist())) == counts
    assert (
        Counter(zip(*(part.tolist() for part in names["data"].locate(list(names["sampler"])))))
        == counts
    )
    batch = next(names["loader"])
    names["loader"].close()
    assert (
        list(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist()))
        == list(zip(episode, frame))[:8]
    )


def test_frame_weights_page_conditions_select_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = {"shape": (1,), "names": None}
    features = {"action": {"dtype": "float32", **one}, "advantage": {"dtype": "float32", **one}}
    with us.EpisodeWriter(
        "scored", fps=10, features={**features, "is_intervention": {"dtype": "bool", **one}}
    ) as writer:
        for advantage, corrected in (
            (-1.0, False),
            (0.5, False),
            (-1.0, True),
            (2.0, True),
            (0.0, False),
        ):
            values = {key: np.array([advantage], np.float32) for key in features}
            writer.add_frame({**values, "is_intervention": np.array([corrected])}, task="push")
        writer.save_episode()
    run_python(ROOT / "docs/frame_weights.md", {"us": us, "pa": pa, "pq": pq}, slice(1, 2))
    data = us.EpisodeDataset("scored", frame_weights="good.parquet", frame_weights_in="order")
    assert Counter(data.locate(list(us.EpisodeSampler(data)))[1].tolist()) == {1: 1, 2: 4, 3: 4}
    corrections = us.EpisodeDataset("scored", frame_weights="is_intervention")
    assert corrections.segments.tolist() == [[0, 2, 4]]
    with refused("'advantage'", where="scored", fix="frame_weights"):
        us.EpisodeDataset("scored", where="advantage > 0")


def test_sensors_page_example_prints_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "data/table", Spec(lengths=(8, 5), cameras=(), foreign=False))
    execute("sensors")
    assert (
        capsys.readouterr().out.strip()
        == blocks("sensors", "python")[0].strip().rpartition("# ")[2]
    )


def test_checkpoints_page_robot_code_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A robot needs the folder alone: narrower than the widest, with one joint learned as a
    difference.
    """
    camera = "observation.images.front"
    maps = {"offset": [[0.0] * 3, [0.0] * 3], "spread": [[1.0] * 3, [0.0] * 3]}
    units = {
        "heads": ["g1::joint", "so101::joint"],
        "action": maps,
        "observation.state": maps,
        "delta": [[False] * 3, [True, False, False]],
        "dims": {"action": [3, 2], "observation.state": [3, 2]},
    }
    config = FlowPolicyConfig(
        3, 3, (camera, "observation.images.wrist"), image_size=(16, 16), future=True
    )
    robots = {"g1::joint": {"cameras": list(config.cameras)}, "so101::joint": {"cameras": [camera]}}
    FlowPolicy(config, units).save(tmp_path / "POLICY", metadata={"heads": robots})
    monkeypatch.chdir(tmp_path)
    names = {"image": np.zeros((24, 32, 3), np.uint8), "state": np.array([5.0, 6.0])}
    (block,) = blocks("checkpoints", "python")
    with refused("'observation.images.wrist'", kind=ValueError):
        exec(block.replace("so101", "g1"), names | {"state": np.zeros(3)})
    with refused("observation.state", 2, 3, kind=ValueError):
        exec(block, names | {"state": np.array([5.0])})
    exec(block, names)
    expected = np.broadcast_to(np.float32([5, 0]), (config.chunk, 2))  # spread 0: no motion
    np.testing.assert_array_equal(names["actions"], expected)


def test_policies_page_loads_a_policy_that_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = {"offset": np.zeros(4, np.float32), "spread": np.ones(4, np.float32)}
    config = FlowPolicyConfig(4, 4, ("observation.images.front",), chunk=3)
    FlowPolicy(config, {"action": unit, "observation.state": unit}).save(tmp_path / "POLICY")
    monkeypatch.chdir(tmp_path)
    assert execute("policies")["actions"].shape == (3, 4)


def test_pi05_page_has_a_config_of_tiny_dimensions(tmp_path: Path) -> None:
    (block,) = blocks("pi05", "json")
    (tmp_path / "config.json").write_text(block)
    stored = json.loads(block)
    widths = {"action": stored["action_dim"], "observation.state": stored["state_dim"]}
    maps = {key: {"offset": [0] * width, "spread": [1] * width} for key, width in widths.items()}
    (tmp_path / "normalisation.json").write_text(json.dumps(maps))
    weights = GOLDEN / stored["type"] / "weights.safetensors"
    shutil.copy(weights, tmp_path / "model.safetensors")
    assert load_policy(tmp_path).config.sizes.vlm.width == stored["dimensions"]["vlm"]["width"]


# -- names, messages and links ---------------------------------------------------------------------


def test_api_page_has_every_public_name_with_a_docstring() -> None:
    listed = re.findall(r"^::: understudy\.(\w+)$", DOCS["api"], re.MULTILINE)
    assert sorted(listed) == sorted(set(us.__all__) - {"__version__"})
    values = {name: getattr(us, name) for name in us.__all__}
    with_doc = {name for name, value in values.items() if (value.__doc__ or "").strip()}
    literals = {name for name, value in values.items() if get_origin(value) is Literal}
    assert values.keys() - with_doc == literals  # a Literal holds no docstring
    assert all(getattr(us.policies, name) is getattr(us, name) for name in us.policies.__all__)


def test_parts_of_the_program_are_those_of_the_program() -> None:
    """Commands, rules of `check`, and settings of other trainers."""
    writers = runpy.run_path(str(ROOT / "scripts/doc_tables.py"))["WRITERS"]
    changed = [
        name
        for name, write in writers.items()
        if write(DOCS[Path(name).stem]) != DOCS[Path(name).stem]
    ]
    assert changed == [], "run python scripts/doc_tables.py"


def pages_of(nav: Any) -> Iterator[str]:
    """Pages of a part of the navigation."""
    if isinstance(nav, str):
        yield nav
        return
    for entry in nav.values() if isinstance(nav, dict) else nav:
        yield from pages_of(entry)


def test_site_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = list(pages_of(nav))
    outside = {f"{recipe.parent.name}.md" for recipe in (ROOT / "recipes").glob("*/README.md")}
    outside |= {"index.md", "settings.md", "changelog.md", "contributing.md"}
    assert outside <= set(pages)
    assert sorted(page for page in pages if page not in outside) == sorted(
        f"{name}.md" for name in DOCS
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_architecture_names_existing_files() -> None:
    names = re.findall(r"`([a-z0-9_/]+\.(?:py|c))`", DOCS["architecture"])
    assert len(names) > 20
    assert [
        name
        for name in names
        if not any(
            (root / name).exists()
            for root in (ROOT, *ROOT.glob("packages/*/src/*"), *ROOT.glob("packages/*"))
        )
    ] == []


@cache
def source_texts() -> str:
    """Constants of the source code, one per line, with `…` in place of the values of a formatted
    one.
    """
    texts = []
    for path in ROOT.glob("packages/*/src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        part.value if isinstance(part, ast.Constant) else "…"
                        for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value.replace("\n", " "))
    return "\n".join(texts)


def is_in_the_source(message: str) -> bool:
    """Whether the fixed words of a message are in one constant, in their sequence."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip(" ;:")]
    return re.search("[^\n]*".join(parts), source_texts()) is not None


def test_troubleshooting_quotes_messages_of_the_source() -> None:
    messages = [
        line.strip() for block in blocks("troubleshooting", "text") for line in block.splitlines()
    ]
    assert len(messages) > 8
    assert [message for message in messages if message and not is_in_the_source(message)] == []
    assert not is_in_the_source("the gradient exploded; …")
