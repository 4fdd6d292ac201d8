"""Golden files of pi0.5 and pi0, made by LeRobot's port with tiny dimensions.

    pip install --target reference/site transformers==5.5.4
    pip download --no-deps --ignore-requires-python lerobot==0.6.1 --dest reference
    python -m zipfile -e reference/lerobot-0.6.1-py3-none-any.whl reference/port
    python tests/support/golden_pi05.py --site reference/site --port reference/port
        --out tests/policies/pi05/golden

Each of the folders `pi05` and `pi0` of `--out` then has

    sizes.json              dimensions of the network
    weights.safetensors     all parameters of the port under its own (the released) names, random,
                            fixed seed
    inputs.safetensors      images, masks, tokens, state, actions, noise, times
    reference.safetensors   loss per element, actions after ten Euler steps, features and embeddings
                            of the prefix, and the gradient of the mean loss for each parameter that
                            the loss reaches

`lab/benchmarks/parity.py --golden FOLDER` compares a network with such a folder. LeRobot itself is
not installed: its modelling files import a few names from the rest of its package, for which this
script puts stubs into `sys.modules`. Without the two packages it exits with code 2 and one line
that names the missing one.

Inputs are chosen so that mistakes show: every parameter is random (fresh norms are 1 or 0 and hide
their order), cameras are missing in front and behind, texts have different lengths, and times lie
near 0, in the middle and near 1.
"""

import argparse
import importlib
import importlib.metadata
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SIZES: dict[str, Any] = {
    "vision": {"width": 16, "depth": 3, "mlp": 40, "heads": 2, "patch": 4, "image": 12},
    "vlm": {
        "width": 32,
        "depth": 3,
        "mlp_dim": 48,
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 8,
    },
    "expert": {
        "width": 24,
        "depth": 3,
        "mlp_dim": 40,
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 8,
    },
    "vocab": 96,
    "chunk": 5,
    "dim": 7,
}
"""The port has 8 query heads as a literal; all else is free."""
SEEDS = {"pi05": 5, "pi0": 50}
CAMERAS = [[True, True, True], [False, True, True], [True, False, False]]
TEXT = 11
LENGTHS = [11, 7, 3]
TIMES = [0.1, 0.55, 0.97]
STEPS = 10
TESTED = {"lerobot": "0.6.1", "transformers": "5.5.4"}


class MissingPortError(Exception):
    """The reference port cannot be imported; the message is one line with the reason."""


@dataclass(frozen=True)
class Port:
    """The modelling files of the port and the versions of its packages."""

    modules: dict[str, ModuleType]
    versions: dict[str, str]


def load_port(site: Path | None, folder: Path | None) -> Port:
    """Import the port's modelling files, with stubs for the rest of its package.

    Args:
        site: folder of `pip install --target` with transformers; None where it is installed.
        folder: folder that contains the package `lerobot`; None where it is installed.

    Raises:
        MissingPortError: a package is not there, or its files are not those of the tested release.
    """
    if site is not None:
        if not site.is_dir():
            raise MissingPortError(
                f"--site {site}: no such folder; pip install --target {site} transformers==5.5.4"
            )
        sys.path.insert(0, str(site))
    package = _package_folder(folder)
    try:
        import transformers
    except ImportError as error:
        raise MissingPortError(
            f"transformers cannot be imported ({error}); pip install transformers==5.5.4"
        ) from error
    _put_stubs(package)
    try:
        modules = {
            name: importlib.import_module(f"lerobot.policies.{name}.modeling_{name}")
            for name in SEEDS
        }
    except (ImportError, AttributeError) as error:
        raise MissingPortError(
            f"lerobot at {package} is not {TESTED['lerobot']}: {error}"
        ) from error
    return Port(
        modules,
        {
            "lerobot": _lerobot_version(package),
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )


def _package_folder(folder: Path | None) -> Path:
    for path in [folder] if folder is not None else map(Path, sys.path):
        if path is not None and (path / "lerobot/policies/pi05/modeling_pi05.py").is_file():
            return path / "lerobot"
    raise MissingPortError(
        "lerobot is not there; see the head of this file, or name its folder by --port"
    )


def _lerobot_version(package: Path) -> str:
    found = sorted(package.parent.glob("lerobot-*.dist-info"))
    return found[0].name.removeprefix("lerobot-").removesuffix(".dist-info") if found else "unknown"


def _put_stubs(package: Path) -> None:
    """Replace all of the package but its modelling files: those need names, and no behaviour of
    them.
    """

    def module(name: str, path: Path | None = None, **names: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(names)
        if path is not None:
            made.__path__ = [str(path)]
        sys.modules[name] = made

    def name_only(name: str) -> type:
        return type(name, (), {})

    policies = package / "policies"
    module("lerobot", package)
    module("lerobot.policies", policies)
    module("lerobot.policies.common", policies / "common")
    for name, kind in (("pi05", "PI05Config"), ("pi0", "PI0Config")):
        module(f"lerobot.policies.{name}", policies / name)
        configuration = f"lerobot.policies.{name}.configuration_{name}"
        module(configuration, DEFAULT_IMAGE_SIZE=224, **{kind: name_only(kind)})
    module("lerobot.policies.pretrained", PreTrainedPolicy=nn.Module, T=Any)
    module("lerobot.policies.rtc", policies / "rtc")
    module("lerobot.policies.rtc.modeling_rtc", RTCProcessor=name_only("RTCProcessor"))
    module("lerobot.configs", PreTrainedConfig=name_only("PreTrainedConfig"))
    module("lerobot.utils", package / "utils")
    module(
        "lerobot.utils.constants",
        ACTION="action",
        OBS_STATE="observation.state",
        OBS_LANGUAGE_TOKENS="observation.language.tokens",
        OBS_LANGUAGE_ATTENTION_MASK="observation.language.attention_mask",
        OPENPI_ATTENTION_MASK_VALUE=-2.3819763e38,
    )
    module("lerobot.utils.device_utils", get_safe_dtype=lambda dtype, device: dtype)
    module(
        "lerobot.utils.import_utils",
        _transformers_available=True,
        require_package=lambda package, extra=None: None,
    )


def build(port: Port, name: str, sizes: dict[str, Any]) -> nn.Module:
    """Build the port's network with other dimensions than the released ones: `GemmaConfig` by name,
    vision by edit.
    """
    module = port.modules[name]

    def gemma_config(variant: str) -> Any:
        return module.GemmaConfig(**sizes["vlm" if variant == "vlm" else "expert"])

    def shrunk(made: Any) -> Any:
        vision = sizes["vision"]
        text = made.text_config
        made.image_token_index = made._vocab_size = text.vocab_size = sizes["vocab"]
        made.projection_dim = made.vision_config.projection_dim = sizes["vlm"]["width"]
        text.pad_token_id = made.pad_token_id = 0
        made.vision_config.hidden_size = vision["width"]
        made.vision_config.num_hidden_layers = vision["depth"]
        made.vision_config.intermediate_size = vision["mlp"]
        made.vision_config.num_attention_heads = vision["heads"]
        made.vision_config.patch_size = vision["patch"]
        made.vision_config.image_size = vision["image"]
        return made

    def shrunk_expert(made: Any) -> Any:
        made.vocab_size = sizes["vocab"]
        made.pad_token_id = 0
        return made

    def patched(kind: type, edit: Any) -> Any:
        return lambda config: kind(config=edit(config))

    replaced = {
        "get_gemma_config": gemma_config,
        "PaliGemmaForConditionalGenerationWithPiGemma": patched(
            module.PaliGemmaForConditionalGenerationWithPiGemma, shrunk
        ),
        "PiGemmaForCausalLM": patched(module.PiGemmaForCausalLM, shrunk_expert),
    }
    kept = {attribute: getattr(module, attribute) for attribute in replaced}
    config = SimpleNamespace(
        paligemma_variant="vlm",
        action_expert_variant="expert",
        dtype="float32",
        image_resolution=(sizes["vision"]["image"],) * 2,
        freeze_vision_encoder=False,
        train_expert_only=False,
        max_action_dim=sizes["dim"],
        max_state_dim=sizes["dim"],
        chunk_size=sizes["chunk"],
        min_period=4e-3,
        max_period=4.0,
        num_inference_steps=STEPS,
        compile_model=False,
        rtc_config=None,
    )
    module.__dict__.update(replaced)
    try:
        network: nn.Module = getattr(module, "PI05Pytorch" if name == "pi05" else "PI0Pytorch")(
            config
        )
    finally:
        module.__dict__.update(kept)
    return network.eval()


@torch.no_grad()
def randomise(network: nn.Module, seed: int) -> None:
    """Fill every parameter with random values of about the size that they have after training."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(network.named_parameters()):
        value = torch.randn(parameter.shape, generator=draw)
        if name.endswith("embed_tokens.weight"):
            value = value / parameter.shape[1] ** 0.5  # the network multiplies by sqrt(width)
        elif parameter.ndim > 1:
            value = value * (parameter[0].numel()) ** -0.5
        else:
            value = 0.3 * value
        is_layer_norm = "vision_tower" in name and "norm" in name and name.endswith("weight")
        parameter.copy_(value + 1 if is_layer_norm else value)


def draw_inputs(sizes: dict[str, Any], seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(1000 + seed)
    batch = len(CAMERAS)
    cameras = len(CAMERAS[0])
    side = sizes["vision"]["image"]
    shape = (sizes["chunk"], sizes["dim"])
    masks = torch.tensor(CAMERAS)
    images = torch.rand(batch, cameras, 3, side, side, generator=draw) * 2 - 1
    token_masks = torch.arange(TEXT)[None] < torch.tensor(LENGTHS)[:, None]
    tokens = torch.randint(1, sizes["vocab"], (batch, TEXT), generator=draw)
    return {
        # a missing camera is black and masked
        "images": torch.where(masks[:, :, None, None, None], images, -1.0),
        "image_masks": masks,
        "tokens": torch.where(token_masks, tokens, 0),
        "token_masks": token_masks,
        "state": torch.randn(batch, sizes["dim"], generator=draw),
        "actions": torch.randn(batch, *shape, generator=draw),
        "noise": torch.randn(batch, *shape, generator=draw),
        "time": torch.tensor(TIMES),
    }


def evaluate(network: Any, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run the port: all that `parity.py` compares, and gradients of the mean loss under `grad/`."""
    images = list(inputs["images"].unbind(1))
    masks = list(inputs["image_masks"].unbind(1))
    text = (inputs["tokens"], inputs["token_masks"])
    state = () if name == "pi05" else (inputs["state"],)
    network.zero_grad()
    loss = network.forward(
        images, masks, *text, *state, inputs["actions"], inputs["noise"], inputs["time"]
    )
    loss.mean().backward()
    with torch.no_grad():
        features = torch.stack(
            [network.paligemma_with_expert.embed_image(image) for image in images], 1
        )
        prefix, valid, _ = network.embed_prefix(images, masks, *text)
        actions = network.sample_actions(
            images, masks, *text, *state, noise=inputs["noise"], num_steps=STEPS
        )
    gradients = {
        f"grad/{key}": value.grad
        for key, value in network.named_parameters()
        if value.grad is not None
    }
    found = {
        "loss": loss,
        "actions": actions,
        "image_features": features,
        "prefix": prefix,
        "prefix_valid": valid,
    }
    return {
        key: value.detach().contiguous().clone() for key, value in {**found, **gradients}.items()
    }


def write(port: Port, name: str, folder: Path) -> None:
    network = build(port, name, SIZES)
    randomise(network, SEEDS[name])
    inputs = draw_inputs(SIZES, SEEDS[name])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sizes.json").write_text(json.dumps(SIZES, indent=2) + "\n")
    weights = {
        key: value.detach().contiguous().clone() for key, value in network.state_dict().items()
    }
    save_file(weights, folder / "weights.safetensors", port.versions)
    save_file(inputs, folder / "inputs.safetensors", port.versions)
    save_file(evaluate(network, name, inputs), folder / "reference.safetensors", port.versions)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--site", type=Path, help="folder of `pip install --target` with transformers"
    )
    parser.add_argument("--port", type=Path, help="folder with the unpacked package lerobot")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the golden folders pi05 and pi0"
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        port = load_port(options.site, options.port)
    except MissingPortError as error:
        print(error, file=sys.stderr)
        return 2
    print(", ".join(f"{package} {version}" for package, version in port.versions.items()))
    for package, version in TESTED.items():
        if port.versions[package] != version:
            print(
                f"{package} {port.versions[package]} is not the tested {version}", file=sys.stderr
            )
    for name in SEEDS:
        write(port, name, options.out / name)
        size = sum(path.stat().st_size for path in (options.out / name).iterdir())
        print(f"{options.out / name}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
