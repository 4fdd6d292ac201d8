"""Folders of LeRobot and openpi: keys, shapes, bits and formulas, and the reference port where it
is installed.
"""

import ast
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.pi05.config import Pi05Settings, Sizes
from understudy.policies.pi05.normalization import find_normalization, fit_normalization
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.released_keys import EMBEDDING, EXPERT_HEAD, HEAD, released_key
from understudy.testing.pi05 import GOLDEN
from understudy.testing.pi05_policy import CAMERAS, policy
from understudy.testing.released import released_shapes
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.testing.sentences import write_model
from understudy.train import run
from understudy_base import ACTION, STATE, ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_zoo.folder_formats import ForeignFolder, describe_folder, save_folder

FAMILIES = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])
TOOLS = pytest.mark.parametrize("tool", ["lerobot", "openpi"])
NORMALIZATION: dict[str, Any] = {
    "heads": ["arm::joint"],
    ACTION: {"offset": [[0.5, -1.1, 7.0]], "spread": [[2.3, 0.7, 0.0]]},
    STATE: {"offset": [[0.1, 100.5]], "spread": [[1.9, 0.3]]},
    "delta": [[False] * 3],
    "dims": {ACTION: [3], STATE: [2]},
}
FACTS: dict[str, Any] = {
    "heads": {
        "arm::joint": {
            "action_names": ["x", "y", "Gripper.pos"],
            "cameras": list(CAMERAS),
            "fps": 10,
        }
    }
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


def settings(made: Pi05Policy, **changes: Any) -> Any:
    return replace(
        made.config, **{"prompt": "state" if made.config.type == "pi05" else "plain"} | changes
    )


def write(
    tool: str, made: Pi05Policy, folder: Path, dtype: str = "fp32", **changes: Any
) -> ForeignFolder:
    described = describe_folder(tool, settings(made, **changes), NORMALIZATION, FACTS, dtype=dtype)
    save_folder(folder, described, made.state_dict())
    return described


def object_of(path: Path) -> Any:
    return json.loads(path.read_text())


# -- weights ---------------------------------------------------------------------------------------


@TOOLS
@FAMILIES
def test_weights_have_the_released_keys_shapes_and_bits(
    tool: str, adaptive: bool, tokenizer: Path, tmp_path: Path
) -> None:
    made = policy(tokenizer, adaptive)
    write(tool, made, tmp_path / "out")
    found = load_file(tmp_path / "out/model.safetensors")
    wanted = released_shapes(made.sizes)
    if tool == "lerobot":  # its embedding and its head are two parameters
        wanted[EMBEDDING] = wanted[HEAD]
        wanted = {f"model.{key}": shape for key, shape in wanted.items()}
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == wanted
    first = "model." if tool == "lerobot" else ""
    for name, parameter in made.named_parameters():
        assert torch.equal(found.pop(first + released_key(name)), parameter), name
    assert not found.pop(first + EXPERT_HEAD).any()
    if tool == "lerobot":
        assert torch.equal(found.pop(first + EMBEDDING), made.embedding.weight)
    assert not found


# -- normalization ---------------------------------------------------------------------------------


@FAMILIES
def test_lerobot_normalizes_with_the_bits_of_the_policy(
    adaptive: bool, tokenizer: Path, tmp_path: Path
) -> None:
    write("lerobot", policy(tokenizer, adaptive), tmp_path / "out")
    random = np.random.default_rng(0)
    for file, step, keys in (
        ("policy_preprocessor", "normalizer_processor", (STATE, ACTION)),
        ("policy_postprocessor", "unnormalizer_processor", (ACTION,)),
    ):
        (own,) = (
            each
            for each in object_of(tmp_path / f"out/{file}.json")["steps"]
            if each["registry_name"] == step
        )
        figures = load_file(tmp_path / "out" / own["state_file"])
        config = own["config"]
        for key in keys:
            assert config["norm_map"][config["features"][key]["type"]] == "MEAN_STD"
            offset, spread = (
                torch.tensor(NORMALIZATION[key][name][0]) for name in ("offset", "spread")
            )
            mean = figures[f"{key}.mean"]
            std = figures[f"{key}.std"]
            x = torch.from_numpy(random.normal(size=(50, len(offset)))).float() + offset
            real = spread > 0
            # LeRobot's formulas: (x - mean) / (std + eps), and x * std + mean.
            assert torch.equal(
                ((x - mean) / (std + config["eps"]))[:, real], ((x - offset) / spread)[:, real]
            )
            assert torch.equal(x * std + mean, x * spread + offset)
    stored = fit_normalization(find_normalization(tmp_path / "out"), NORMALIZATION)
    for key in (ACTION, STATE):
        for name in ("offset", "spread"):
            np.testing.assert_array_equal(
                np.float32(stored[key][name]),
                np.float32(NORMALIZATION[key][name]) + np.float32(1e-30),
            )


@FAMILIES
def test_openpi_normalizes_as_the_policy(adaptive: bool, tokenizer: Path, tmp_path: Path) -> None:
    write("openpi", policy(tokenizer, adaptive), tmp_path / "out")
    figures = object_of(tmp_path / "out/assets/arm_joint/norm_stats.json")["norm_stats"]
    x = np.random.default_rng(0).normal(size=(50, 1))
    for key, name in ((STATE, "state"), (ACTION, "actions")):
        offset, spread = (
            np.float32(NORMALIZATION[key][each][0]).astype(float) for each in ("offset", "spread")
        )
        own = {figure: np.array(values) for figure, values in figures[name].items()}
        real = spread > 0
        given = (offset + x * spread)[:, real]
        quantiles = (given - own["q01"][real]) / (own["q99"] - own["q01"] + 1e-6)[real] * 2.0 - 1.0
        deviation = (given - own["mean"][real]) / (own["std"] + 1e-6)[real]
        for found in (quantiles, deviation):
            np.testing.assert_allclose(found, x.repeat(real.sum(), 1), atol=1e-9)
    constant = (x + 1.0) / 2.0 * (own["q99"] - own["q01"] + 1e-6) + own["q01"] if adaptive else None
    constant = x * (own["std"] + 1e-6) + own["mean"] if constant is None else constant
    np.testing.assert_allclose(constant[:, 2], 7.0, atol=1e-5)
    stored = fit_normalization(
        find_normalization(tmp_path / "out", quantiles=adaptive), NORMALIZATION
    )
    for key in (ACTION, STATE):
        for name in ("offset", "spread"):
            np.testing.assert_allclose(
                stored[key][name], NORMALIZATION[key][name], rtol=3e-7, atol=2e-6
            )


def test_constant_state_stays_finite_and_is_noted(tokenizer: Path) -> None:
    constant = NORMALIZATION | {STATE: {"offset": [[0.1, 5.0]], "spread": [[1.9, 0.0]]}}
    made = policy(tokenizer)
    for tool in ("lerobot", "openpi"):
        notes = describe_folder(tool, settings(made), constant, FACTS).notes
        plain = describe_folder(tool, settings(made), NORMALIZATION, FACTS).notes
        assert len(notes) == len(plain) + 1
        assert any("[1]" in note for note in notes)


def test_openpi_refuses_a_spread_below_its_formula(tokenizer: Path) -> None:
    narrow = NORMALIZATION | {ACTION: {"offset": [[0.5, -1.0, 7.0]], "spread": [[2.0, 1e-7, 1.0]]}}
    with pytest.raises(ConfigError, match=r"action\[1\]"):
        describe_folder("openpi", settings(policy(tokenizer)), narrow, FACTS)


def test_openpi_folder_pairs_the_cameras(tokenizer: Path) -> None:
    notes = describe_folder("openpi", settings(policy(tokenizer)), NORMALIZATION, FACTS).notes
    (note,) = [note for note in notes if note.startswith("cameras: ")]
    names = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    pairs = [f"{theirs} is {own}" for theirs, own in zip(names, CAMERAS)]
    assert pairs
    assert all(pair in note for pair in pairs)
    assert all(name in note for name in names)


@pytest.mark.parametrize("names", [["x", "y", "Gripper.pos"], ["pos", "pos.y", "p"], []])
def test_lerobot_expresses_differences_by_names(
    names: list[str], tokenizer: Path, tmp_path: Path
) -> None:
    """Names that contain each other are replaced by numbers; the own reader finds the same
    dimensions.
    """
    wide: dict[str, Any] = NORMALIZATION | {
        "delta": [[True, True, False]],
        STATE: {"offset": [[0.0] * 3], "spread": [[1.0] * 3]},
        "dims": {ACTION: [3], STATE: [3]},
    }
    facts = {"heads": {"arm::joint": FACTS["heads"]["arm::joint"] | {"action_names": names}}}
    made = policy(tokenizer)
    described = describe_folder("lerobot", settings(made, state_dim=3), wide, facts)
    save_folder(tmp_path / "out", described, made.state_dict())
    assert find_normalization(tmp_path / "out").delta == (0, 1)
    config = object_of(tmp_path / "out/config.json")
    assert config["use_relative_actions"] is True
    assert (config["action_feature_names"] == names) == (names[:1] == ["x"])
    with refused("lerobot", 2, 3, kind=ConfigError):
        describe_folder(
            "lerobot",
            settings(made),
            wide
            | {
                "delta": [[True, False, False]],
                STATE: NORMALIZATION[STATE],
                "dims": NORMALIZATION["dims"],
            },
            facts,
        )


# -- settings --------------------------------------------------------------------------------------


@FAMILIES
def test_lerobot_config_has_the_settings_of_the_policy(
    adaptive: bool, tokenizer: Path, tmp_path: Path
) -> None:
    made = policy(tokenizer, adaptive)
    write("lerobot", made, tmp_path / "out", dtype="bf16", flow_time="beta")
    config = object_of(tmp_path / "out/config.json")
    assert config["type"] == made.config.type
    assert (config["chunk_size"], config["max_action_dim"], config["tokenizer_max_length"]) == (
        4,
        made.sizes.dim,
        80,
    )
    assert config["dtype"] == "bfloat16"
    assert (config["time_sampling_scale"], config["time_sampling_offset"]) == (1.0, 0.0)
    assert list(config["input_features"]) == [*CAMERAS, STATE]
    assert config["output_features"][ACTION]["shape"] == [3]
    # LeRobot raises, and does not read weights of another size
    assert config["paligemma_variant"] == "other"


def test_messages_are_written_as_pi052(tokenizer: Path, tmp_path: Path) -> None:
    """Fields and steps as in `PI052Config` and `make_pi052_pre_post_processors`."""
    made = policy(tokenizer)
    described = write("lerobot", made, tmp_path / "out", prompt="message")
    assert object_of(tmp_path / "out/config.json")["type"] == "pi052"
    assert (
        len(described.notes)
        == len(describe_folder("lerobot", settings(made), NORMALIZATION, FACTS).notes) + 1
    )
    steps = {
        step["registry_name"]: step["config"]
        for step in object_of(tmp_path / "out/policy_preprocessor.json")["steps"]
    }
    assert list(steps)[-4:] == [
        "normalizer_processor",
        "render_messages_processor",
        "pi052_text_tokenizer",
        "device_processor",
    ]
    (turn,) = steps["render_messages_processor"]["recipe"]["messages"]
    assert turn == {"role": "user", "content": "${task}", "stream": "low_level"}
    assert steps["pi052_text_tokenizer"] == {
        "max_length": 80,
        "padding_side": "right",
        "padding": "max_length",
    }
    assert find_normalization(tmp_path / "out").maps


def test_released_dimensions_have_their_names(tokenizer: Path) -> None:
    dimensions = asdict(replace(Sizes.BASE, adaptive=True))
    config = settings(policy(tokenizer), dimensions=dimensions)
    for tool in ("lerobot", "openpi"):
        described = describe_folder(tool, config, NORMALIZATION, FACTS)
        stored = json.loads(described.files["config.json"])
        assert (stored["paligemma_variant"], stored["action_expert_variant"]) == (
            "gemma_2b",
            "gemma_300m",
        )
        assert "sizes.json" not in described.files
    steps = json.loads(
        describe_folder("lerobot", config, NORMALIZATION, FACTS).files["policy_preprocessor.json"]
    )
    assert "google/paligemma-3b-pt-224" in json.dumps(steps)


@pytest.mark.parametrize(
    ("tool", "adaptive", "changes"),
    [
        ("lerobot", True, {"prompt": "plain"}),
        ("lerobot", False, {"prompt": "state"}),
        ("lerobot", True, {"response_tokens": 8}),
        ("openpi", True, {"response_tokens": 8}),
        ("openpi", True, {"history": (1.0,)}),
        ("openpi", True, {"prompt": "message"}),
        ("lerobot", True, {"state_dim": 0}),
    ],
)
def test_policies_without_an_equal_are_refused(
    tool: str, adaptive: bool, changes: dict[str, Any], tokenizer: Path
) -> None:
    (field,) = changes
    named = "data.state" if field == "state_dim" else f"policy.{field}"
    with refused("format", tool, named, kind=ConfigError):
        describe_folder(
            tool, settings(policy(tokenizer, adaptive), **changes), NORMALIZATION, FACTS
        )


def test_one_of_several_heads_is_named(tokenizer: Path, tmp_path: Path) -> None:
    both: dict[str, Any] = {
        "heads": ["a::joint", "b::joint"],
        ACTION: {"offset": [[1.0] * 3, [2.0] * 3], "spread": [[1.0] * 3] * 2},
        STATE: {"offset": [[0.0] * 2] * 2, "spread": [[1.0] * 2] * 2},
        "dims": {ACTION: [3, 2], STATE: [2, 2]},
    }
    made = policy(tokenizer)
    for head in ("", "c"):
        with refused("a::joint", "b::joint", kind=ConfigError):
            describe_folder("lerobot", settings(made), both, {}, head)
    save_folder(
        tmp_path / "out",
        describe_folder("lerobot", settings(made), both, {}, "b::joint"),
        made.state_dict(),
    )
    assert find_normalization(tmp_path / "out").maps[ACTION]["offset"] == [2.0, 2.0]


@TOOLS
def test_nothing_is_replaced(tool: str, tokenizer: Path, tmp_path: Path) -> None:
    made = policy(tokenizer)
    write(tool, made, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError):
        write(tool, made, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileExistsError):
        write(tool, made, tmp_path / "empty")
    assert {
        path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    } == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "out"]


# -- the command -----------------------------------------------------------------------------------


def test_command_exports_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_dataset(tmp_path / "data")
    chosen = Pi05Settings(size="tiny", tokenizer=str(write_model(tmp_path / "tok")))
    assert (
        run.train(tiny_config(tmp_path / "data", tmp_path / "run", policy=chosen, steps=1))
        == run.DONE
    )
    for tool in ("lerobot", "openpi"):
        assert main(["export", str(tmp_path / "run"), "--format", tool]) == 0
        assert "not in the folder" in capsys.readouterr().out
        folder = tmp_path / f"run/export-{tool}"
        shapes = {
            key: tuple(tensor.shape)
            for key, tensor in load_file(folder / "model.safetensors").items()
        }
        if tool == "openpi":
            assert shapes == released_shapes(replace(Sizes.TINY, adaptive=True))
        find_normalization(folder)
        assert main(["export", str(tmp_path / "run"), "--format", tool]) == 2
        assert "output_dir" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--head", "x"]) == 2


@pytest.mark.long
def test_command_refuses_another_type_of_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run.train(tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run", steps=1))
        == run.DONE
    )
    assert main(["export", str(tmp_path / "run"), "--format", "lerobot"]) == 2
    assert "flow" in capsys.readouterr().err
    assert not (tmp_path / "run/export-lerobot").exists()


# -- the port itself, where its packages are -------------------------------------------------------

SITE = os.environ.get("UNDERSTUDY_PI05_SITE")
PORT = os.environ.get("UNDERSTUDY_PI05_PORT")
NEEDS_PORT = pytest.mark.skipif(
    not SITE or not PORT,
    reason="UNDERSTUDY_PI05_SITE and UNDERSTUDY_PI05_PORT name no port; "
    "tests/support/golden_pi05.py installs one",
)
LOAD = """
import sys, json, pathlib, torch, safetensors.torch
sys.path.insert(0, sys.argv[1])
import golden_pi05 as golden
port = golden.load_port(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
folder, name, tool = pathlib.Path(sys.argv[4]), sys.argv[5], sys.argv[6]
reference = pathlib.Path(sys.argv[7])
network = golden.build(port, name, json.loads((folder / "sizes.json").read_text()))
if tool == "lerobot":
    wrapper = torch.nn.Module()
    wrapper.model = network
    wrapper.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"), strict=True)
else:  # openpi's network is tied, and openpi reads it so
    language = network.paligemma_with_expert.paligemma
    language.lm_head.weight = language.model.language_model.embed_tokens.weight
    safetensors.torch.load_model(network, folder / "model.safetensors", strict=True)
inputs = safetensors.torch.load_file(reference / "inputs.safetensors")
results = golden.evaluate(network, name, inputs)
for key, wanted in safetensors.torch.load_file(reference / "reference.safetensors").items():
    if key in ("loss", "actions", "image_features", "prefix"):
        found, wanted = results[key].float(), wanted.float()
        atol = 1e-5 * float(wanted.abs().max()) + 1e-7
        assert torch.allclose(found, wanted, rtol=1e-5, atol=atol), key
"""


@NEEDS_PORT
@TOOLS
@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_port_takes_the_folder_strictly(
    tool: str, family: str, tokenizer: Path, tmp_path: Path
) -> None:
    adaptive = family == "pi05"
    sizes = Sizes.from_mapping(object_of(GOLDEN / family / "sizes.json"), adaptive=adaptive)
    config = replace(settings(policy(tokenizer, adaptive)), dimensions=asdict(sizes), tokenizer="")
    made = Pi05Policy(config, NORMALIZATION)
    weights: dict[str, Tensor] = load_file(GOLDEN / family / "weights.safetensors")
    made.load_weights(weights)
    save_folder(
        tmp_path / "out", describe_folder(tool, config, NORMALIZATION, FACTS), made.state_dict()
    )
    root = Path(__file__).parents[5]
    command = [
        sys.executable,
        "-c",
        LOAD,
        str(root / "tests/support"),
        SITE,
        PORT,
        str(tmp_path / "out"),
        family,
        tool,
    ]
    done = subprocess.run(
        [*map(str, command), str(GOLDEN / family)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]


@NEEDS_PORT
@FAMILIES
def test_port_knows_each_field_and_step(adaptive: bool, tokenizer: Path) -> None:
    """Read from LeRobot's sources, since its package is not installed."""
    made = policy(tokenizer, adaptive)
    files = describe_folder("lerobot", settings(made), NORMALIZATION, FACTS).files
    port = Path(str(PORT), "lerobot")
    kind = made.config.type
    known = {"type"}
    for path in (port / "configs/policies.py", port / f"policies/{kind}/configuration_{kind}.py"):
        known |= {
            node.target.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }
    assert set(json.loads(files["config.json"])) <= known
    sources = [*(port / "processor").glob("*.py"), port / f"policies/{kind}/processor_{kind}.py"]
    registered = "\n".join(path.read_text() for path in sources)
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        for step in json.loads(files[name])["steps"]:
            assert f'"{step["registry_name"]}"' in registered
