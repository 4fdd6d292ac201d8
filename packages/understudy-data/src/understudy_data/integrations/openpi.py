"""openpi's PyTorch trainer over `us.EpisodeDataset`, in the order of `us.EpisodeSampler`.

    # before scripts/train_pytorch.py makes its loader
    import understudy_data.integrations.openpi as fast; fast.install()

openpi transforms samples one by one, so its own `DataLoader` with its workers stays.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.process_rank import ProcessRank

MODULE = "openpi.training.data_loader"
_NEEDED = (
    "create_torch_dataset",
    "TorchDataLoader",
    "TransformedDataset",
    "lerobot_dataset",
    "_transforms",
)


def install(module: ModuleType | None = None, *, samples: int = 0) -> None:
    """Replace dataset and sampler of openpi's data loader in this process; a second call changes
    nothing.

    Args:
        module: `openpi.training.data_loader`; None imports it.
        samples: samples that the training has consumed on all processes: step * batch size, on
            resume.

    Raises:
        ModuleNotFoundError: openpi is not installed. ImportError: it is a release with other
            functions.
    """
    loader_module = module if module is not None else import_module(MODULE)
    if getattr(loader_module, "_understudy", False):
        return
    if missing := [name for name in _NEEDED if not hasattr(loader_module, name)]:
        raise ImportError(
            f"{loader_module.__name__} has no {missing[0]}: this release of openpi is another one"
        )
    make = loader_module.create_torch_dataset
    original = loader_module.TorchDataLoader

    def create_torch_dataset(data_config: Any, action_horizon: int, model_config: Any) -> Any:
        if data_config.repo_id in (None, "fake"):
            return make(data_config, action_horizon, model_config)
        meta = loader_module.lerobot_dataset.LeRobotDatasetMetadata(data_config.repo_id)
        steps = [step / meta.fps for step in range(action_horizon)]
        data = EpisodeDataset(
            meta.root, delta_timestamps=dict.fromkeys(data_config.action_sequence_keys, steps)
        )
        if not data_config.prompt_from_task:
            return data
        return loader_module.TransformedDataset(
            data, [loader_module._transforms.PromptFromLeRobotTask(meta.tasks)]
        )

    def torch_data_loader(dataset: Any, local_batch_size: int, **options: Any) -> Any:
        data = _innermost(dataset)
        if data is None or not (options.get("shuffle") or options.get("sampler") is not None):
            return original(dataset, local_batch_size, **options)
        batch_size = local_batch_size * ProcessRank.find().world_size
        sampler = EpisodeSampler(data, seed=options.get("seed", 0), batch_size=batch_size)
        if samples:
            sampler.load_state_dict(sampler.state_dict(consumed=samples))
        return original(
            dataset, local_batch_size, **{**options, "sampler": sampler, "shuffle": False}
        )

    loader_module.create_torch_dataset = create_torch_dataset  # type: ignore[attr-defined]
    loader_module.TorchDataLoader = torch_data_loader  # type: ignore[attr-defined]
    loader_module._understudy = True  # type: ignore[attr-defined]


def _innermost(dataset: Any) -> EpisodeDataset | None:
    """Return the dataset of ours below openpi's transforms, which keep it as `_dataset`; None for
    another one.
    """
    while not isinstance(dataset, EpisodeDataset):
        if (dataset := getattr(dataset, "_dataset", None)) is None:
            return None
    return dataset
