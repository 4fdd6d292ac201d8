"""The functions of LeRobot's training script that the plugin replaces."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from understudy_base import ConfigError, page
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.load.order_rows import OrderExport, Span
from understudy_data.order import Order

SCRIPT = "lerobot.scripts.lerobot_train"
ORDER_FILE = "UNDERSTUDY_ORDER"
"""Environment variable with the path of an order file: the run plays it, or writes its own order
there if it is new.
"""
_NEEDED = (
    "make_train_eval_datasets",
    "EpisodeAwareSampler",
    "compute_sampler_state",
    "cycle",
    "train",
)

logger = logging.getLogger("understudy.integrations.lerobot.plugin")


@dataclass
class _Run:
    """Facts of a run, as the script's calls reveal them.

    Attributes:
        config: LeRobot's settings.
        dataset: LeRobot's training dataset.
        eval_dataset: LeRobot's evaluation dataset, if any.
        is_replaced: whether this loader took the place of the training loader.
        sampler: arguments of LeRobot's sampler.
        position: first position; more than 0 on resume.
    """

    config: Any = None
    dataset: Any = None
    eval_dataset: Any = None
    is_replaced: bool = False
    sampler: dict[str, Any] = field(default_factory=dict)
    position: int = 0


def training_script() -> ModuleType | None:
    """Return LeRobot's training script that runs in this process; None if there is none."""
    main = sys.modules.get("__main__")
    for module in (sys.modules.get(SCRIPT), main):
        if module is not None and all(hasattr(module, name) for name in _NEEDED[:-1]):
            return module
    return sys.modules.get(SCRIPT)


def install(script: ModuleType) -> None:
    """Replace the loader of a training script; a second call changes nothing.

    Args:
        script: the module `lerobot.scripts.lerobot_train`.

    Raises:
        ImportError: the script is of a LeRobot release with other functions.
    """
    if getattr(script, "_understudy", None) is not None:
        return
    if missing := [name for name in _NEEDED if not hasattr(script, name)]:
        raise ImportError(
            f"{script.__name__} has no {missing[0]}: the plugin fits LeRobot 0.6.1; write the "
            f"lines of {page('loading.md')} into a copy of the script instead"
        )
    run = _Run()
    script._understudy = run  # type: ignore[attr-defined]
    make, sampler, state, cycle = (getattr(script, name) for name in _NEEDED[:-1])

    def make_datasets(config: Any) -> Any:
        _check_config(config)
        datasets = make(config)
        _check_dataset(datasets[0])
        run.config = config
        run.dataset = datasets[0]
        run.eval_dataset = datasets[1]
        return datasets

    def make_sampler(*args: Any, **kwargs: Any) -> Any:
        run.sampler = kwargs
        return sampler(*args, **kwargs)

    def sampler_state(step: int, num_frames: int, batch_size: int, num_processes: int) -> Any:
        run.position = step * batch_size * num_processes
        return state(step, num_frames, batch_size, num_processes)

    def cycle_batches(batches: Any) -> Iterator[Any]:
        dataset = getattr(batches, "dataset", None)
        if run.dataset is not None and dataset is run.dataset:
            run.is_replaced = True
            return _batches(run)
        if not run.is_replaced and (run.eval_dataset is None or dataset is not run.eval_dataset):
            raise ConfigError(_describe_wrapped(batches, dataset))
        return cycle(batches)

    replaced: dict[str, Callable[..., Any]] = dict(
        zip(_NEEDED[:-1], (make_datasets, make_sampler, sampler_state, cycle_batches), strict=True)
    )
    for name, function in replaced.items():
        setattr(script, name, function)


def _describe_wrapped(batches: Any, dataset: Any) -> str:
    """Return the message about a training loader that is not of the dataset that LeRobot made."""
    if dataset is not None:
        kind = f"a {type(dataset).__name__}"
    else:
        kind = f"in a {type(batches).__name__} without a dataset"
    return (
        f"the training dataset is {kind}, not the LeRobotDataset of make_train_eval_datasets: the "
        "plugin cannot load it, and LeRobot's own loader would; pass the dataset to the "
        "DataLoader as it is, or leave out the plugin"
    )


def _batches(run: _Run) -> Iterator[dict[str, Any]]:
    """Open the loader of this process at the position of the run, and yield its batches without
    end.
    """
    from accelerate import PartialState

    config = run.config
    dataset = run.dataset
    process = PartialState()
    deltas = dataset.delta_timestamps or {}
    data = EpisodeDataset(
        dataset.root,
        episodes=dataset.episodes,
        drop_n_last_frames=run.sampler.get("drop_n_last_frames") or 0,
        delta_timestamps=deltas,
    )
    options: dict[str, Any] = {
        "batch_size": config.batch_size * process.num_processes,
        "seed": run.sampler.get("seed") or 0,
        "rank": process.process_index,
        "world_size": process.num_processes,
        "num_threads": config.num_workers or "auto",
    }
    if path := os.environ.get(ORDER_FILE):
        with process.main_process_first():
            if process.is_main_process and not os.path.exists(path):
                _write_order(path, data, config.steps, options)
        order = Order.from_file(path, batch_size=options.pop("batch_size"))
        if order.stop < config.steps * order.batch_size:
            fix = f"export more of them, or name a new file in {ORDER_FILE}"
            raise ConfigError(
                f"{path}: has {order.stop // order.batch_size} steps of {config.steps}; {fix}"
            )
        options["order"] = order
        del options["seed"]
    device = process.device if process.device.type == "cuda" else None
    loader = Loader(data, position=run.position, device=device, **options)
    in_order = f", in the order of {path}" if path else ""
    # Not at the import: LeRobot sets up its log after that.
    logger.info(
        "understudy loads the batches in place of LeRobot's loader: %s, %d samples a step over %d "
        "processes%s",
        dataset.root,
        loader.order.batch_size,
        loader.world_size,
        in_order,
    )
    return lerobot_batches(
        loader, [key for key in dataset.meta.video_keys if len(deltas.get(key, ())) == 1]
    )


def _write_order(path: str, data: EpisodeDataset, steps: int, options: dict[str, Any]) -> None:
    """Write the samples of all steps of a run before the first one."""
    with Loader(data, **options) as loader:
        span = Span(0, 0, loader.order.batch_size, steps)
        order = loader.order
    export = OrderExport(order.spec, [span], {data.name: OrderExport.facts_of(data)})
    export.write(path, span.samples(order.locate, options["world_size"]))


def _check_config(config: Any) -> None:
    """Raise ConfigError for settings of LeRobot that this loader does not follow."""
    if config.dataset.streaming:
        raise ConfigError(
            "dataset.streaming is true: the plugin reads local files; leave it out, or leave out "
            "the plugin"
        )
    if config.dataset.image_transforms.enable:
        raise ConfigError(
            "dataset.image_transforms.enable is true: the plugin does not apply LeRobot's "
            "transforms; leave it out, or leave out the plugin"
        )


def _check_dataset(dataset: Any) -> None:
    """Raise ConfigError for a dataset that this loader delivers in another form than LeRobot."""
    fix = "leave out the plugin for this dataset"
    if depth := list(getattr(dataset.meta, "depth_keys", ())):
        raise ConfigError(f"{depth[0]} is depth, which LeRobot delivers in other units; {fix}")
    if getattr(dataset.meta, "has_language_columns", False):
        raise ConfigError(
            f"{dataset.root} has language columns, which only LeRobot's own loader renders; {fix}"
        )


def lerobot_batches(loader: Loader, videos: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield batches as LeRobot's `DataLoader` does; the loader is closed at the end.

    Images stay uint8, which the training script scales. Numbers of 64 bits become float32. A video
    window of one frame has no dimension of time.

    Args:
        loader: the loader.
        videos: keys of the videos with a window of one frame.
    """
    with loader:
        for batch in loader:
            for key in ("position", "source"):  # which LeRobot's batches do not have
                batch.pop(key, None)
            for key in videos:
                batch[key] = batch[key].squeeze(1)  # [B, 1, 3, H, W] -> [B, 3, H, W]
            for key, value in batch.items():
                if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                    batch[key] = value.float()
            yield batch
