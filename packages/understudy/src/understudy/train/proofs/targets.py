"""The policy that a user names: MODULE:NAME, FILE.py:NAME, a type, a folder, or an object."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import nn

from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy.policies import policy_folder
from understudy.policies.capabilities.images import fit_images
from understudy.policies.capabilities.start import stored_chunk
from understudy.policies.capabilities.texts import ReadsTexts
from understudy.policies.common.fit_text_tokenizer import fit_text_tokenizer
from understudy.policies.own_code.types import import_object, is_code, name_by_hand, pin
from understudy.policies.policy import Policy, load
from understudy.policies.registry import PolicyType, policy_type
from understudy.train.data.run_data import RunData, open_data, read_first_batch
from understudy.train.proofs.batches import COUNT, TASKS, own_batch, stranger_batch
from understudy_base import ACTION, HEAD, MODE, STATE, ConfigError, Record
from understudy_data import EpisodeDataset
from understudy_kit import validate

CAMERAS = ("observation.images.front", "observation.images.wrist")
SIDE = 64


class Target(NamedTuple):
    """A policy, a function that makes another one, and a batch for it."""

    name: str
    module: nn.Module
    fresh: Callable[[], nn.Module] | None
    batch: Mapping[str, Any]


def find_target(
    policy: Any,
    settings: Record,
    data: str | Path,
    batch: Mapping[str, Any] | None,
    opened: ExitStack,
) -> Target:
    """Build or load the policy that a user names, and make its batch.

    Args:
        policy: see `check_policy`.
        settings: settings of a type.
        data: dataset of the batch; "": it is made.
        batch: the batch itself.
        opened: closes temporary files.

    Raises:
        ConfigError: there is no such policy, it cannot be built, or has no batch.
    """
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    if isinstance(policy, str | Path):
        name = str(policy)
        policy = _named(name)
    if isinstance(policy, PolicyType):
        build, of_data = _plan_build(policy, name, settings, data, opened)
        built = build()
        return Target(name, built, build, batch or of_data or own_batch(built))
    if settings:
        raise ConfigError(f"settings: {name} is no type of policy, so it has none; leave them out")
    if isinstance(policy, nn.Module):
        return Target(name, policy, None, batch or _batch_of(policy, data))
    make = policy

    def fresh() -> Any:
        made = _called(make, name)
        return made[0] if isinstance(made, tuple) else made

    made = _called(make, name)
    if isinstance(made, tuple):
        module, own = made  # (policy, batch)
        batch = batch or own
    else:
        module = made
    return Target(name, module, fresh, batch or _batch_of(module, data))


def _named(name: str) -> Any:
    """The object of a name. Raises ConfigError."""
    file, colon, attribute = name.rpartition(":")
    if os.path.isdir(name):
        try:
            return load(policy_folder.find_policy(name))
        except (ValueError, OSError) as error:
            raise ConfigError(f"{name}: {error}") from error
    try:
        if not colon:
            return policy_type(name)
        if is_code(name):
            name_by_hand(f"{file}:{attribute}")
            return import_object(name, "check-policy")
    except ValueError as error:
        raise ConfigError(
            f"{error}; give MODULE:NAME, FILE.py:NAME, a type, or a folder"
        ) from error
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if not file or file.startswith("."):
        raise ConfigError(f"{name}: names no module; give MODULE:NAME, FILE.py:NAME or a folder")
    try:
        found: Any = import_module(file)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(f"{name}: module {file} cannot be imported: {error}") from error
    except Exception as error:
        if isinstance(error, AttributeError) and file in sys.modules:
            raise ConfigError(f"{name}: {error}; it has {_callables(file)}") from error
        problem = f"module {file} raises {type(error).__name__}: {error}"
        raise ConfigError(f"{name}: {problem}") from error
    return found


def _callables(module: str) -> str:
    """Names of the first functions and classes of an imported module."""
    there = [name for name, value in vars(sys.modules[module]).items() if callable(value)]
    return ", ".join(there[:8])


def _called(make: Any, name: str) -> Any:
    """Call a class or a function without arguments. Raises ConfigError."""
    if not callable(make):
        raise ConfigError(f"{name} is a {type(make).__name__}: give a policy or a function of none")
    try:
        made = make()
    except Exception as error:
        raise ConfigError(
            f"{name}() raises {type(error).__name__}: {error}; name a function without arguments "
            "that returns the policy"
        ) from error
    module = made[0] if isinstance(made, tuple) and made else made
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{name}() is a {type(made).__name__}, not a torch.nn.Module")
    return made


def _plan_build(
    kind: PolicyType, name: str, settings: Record, data: str | Path, opened: ExitStack
) -> tuple[Callable[[], Policy], Any]:
    """A function that builds a policy of a type, and the batch of a dataset."""
    sizes = {field.name: field.type for field in fields(kind.settings)}
    values = dict(settings)
    if "tiny" in get_args(sizes.get("size")):
        values = {"size": "tiny", **values}
    chosen: Any = validate(kind.settings, values)
    if is_code(name):
        chosen = replace(chosen, type=pin(name))  # as a run stores it
    needs_tokenizer = isinstance(chosen, ReadsTexts) and not chosen.tokenizer
    if needs_tokenizer and (room := chosen.text_vocabulary()):
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        texts = chosen.tokenizer_texts(TASKS, TASKS, 4)
        model = fit_text_tokenizer(texts, min(512, room))
        Path(folder, "tokenizer.model").write_bytes(model)
        chosen = replace(chosen, tokenizer=folder)
    batch = None
    facts: dict[str, Any] = {"action_dim": 3, "state_dim": 4, "cameras": CAMERAS}
    chunk = stored_chunk(chosen) or 4
    sizes_of_images: dict[str, Any] = dict.fromkeys(CAMERAS, (SIDE, SIDE))
    if data:
        batch, source = _run_batch(chosen, data, chunk)
        facts = {"action_dim": batch[ACTION].shape[-1], "cameras": source.cameras}
        facts["state_dim"] = batch[STATE].shape[-1] if STATE in batch else 0
        sizes_of_images = dict(source.image_sizes)
    try:
        config = kind.make_config(fit_images(chosen, sizes_of_images), **facts, chunk=chunk)
    except ValueError as error:
        raise ConfigError(f"{name} cannot be built: {error}") from error
    widths = config.widths
    normalization = {key: {"offset": [0.0] * n, "spread": [1.0] * n} for key, n in widths.items()}

    def fresh() -> Policy:
        try:
            policy: Policy = kind.build(config, normalization)
        except ValueError as error:
            raise ConfigError(f"{name} cannot be built: {error}") from error
        # fresh layers of zeros would hide what they multiply
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in policy.parameters():
                if not parameter.any():
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        return policy

    return fresh, batch


def _run_batch(
    settings: Any, data: str | Path, chunk: int, future: bool = False
) -> tuple[dict[str, Any], RunData]:
    """First batch of a run of these settings on a dataset, and its data."""
    config = TrainConfig(
        policy=settings,
        data=DataConfig(root=str(data), chunk_size=chunk),
        batch_size=COUNT,
        mode="joint" if future else "policy",
    )
    opened = open_data(config.with_policy_defaults())
    return dict(read_first_batch(opened, opened.order(config))), opened


def _batch_of(module: nn.Module, data: str | Path) -> dict[str, Any]:
    """A batch for a module that is built."""
    if isinstance(module, Policy):
        made = own_batch(module)
        if not data:
            return made
        config = module.config
        settings = policy_type(config.type).settings.from_mapping(asdict(config))
        batch = _run_batch(settings, data, config.chunk, config.future)[0]
        marks = {key: made[key] for key in (HEAD, MODE) if key in made}
        return {**batch, **marks}
    config = getattr(module, "config", None)
    if not data:
        return stranger_batch(config)
    catalog = EpisodeDataset(data)
    fps = catalog.catalog.fps
    observed = range(1 - (getattr(config, "n_obs_steps", 1) or 1), 1)
    steps = getattr(config, "action_delta_indices", None) or range(8)
    times = {ACTION: [step / fps for step in steps]}
    if len(observed) > 1:
        for key in (STATE, *catalog.catalog.camera_keys):
            times[key] = [step / fps for step in observed]
    part = EpisodeDataset(data, delta_timestamps=times)
    indices = torch.linspace(0, len(part) - 1, min(COUNT, len(part))).long().tolist()
    batch = torch.utils.data.default_collate([part[index] for index in indices])
    for key in part.catalog.camera_keys:
        batch[key] = batch[key].float() / 255
    return dict(batch)
