"""openpi's data loader over our dataset and sampler: a module with the functions of openpi that are
replaced.

openpi is on no package index; its functions here have the signatures of its repository.
"""

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.integrations.openpi import install
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler
from understudy_data.testing.datasets import Spec, write_dataset


class Transformed:
    def __init__(self, dataset: Any, transforms: list[Any]) -> None:
        self._dataset = dataset
        self._transforms = transforms

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index]
        for transform in self._transforms:
            sample = transform(sample)
        return sample


class Torch:
    def __init__(
        self,
        dataset: Any,
        local_batch_size: int,
        *,
        shuffle: bool = False,
        sampler: Any = None,
        **_: Any,
    ):
        self.loader = DataLoader(
            dataset, batch_size=local_batch_size, shuffle=shuffle, sampler=sampler, drop_last=True
        )


def module(root: Path) -> Any:
    found: Any = ModuleType("openpi.training.data_loader")
    meta = SimpleNamespace(root=root, fps=Catalog.open(root).fps, tasks={0: "lift"})
    found.lerobot_dataset = SimpleNamespace(LeRobotDatasetMetadata=lambda repo_id: meta)
    found._transforms = SimpleNamespace(
        PromptFromLeRobotTask=lambda tasks: lambda sample: {**sample, "prompt": tasks[0]}
    )
    found.TransformedDataset = Transformed
    found.TorchDataLoader = Torch
    found.create_torch_dataset = lambda *args: "theirs"
    return found


def config(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "repo_id": "me/set",
            "action_sequence_keys": ("action",),
            "prompt_from_task": True,
            **changes,
        }
    )


def indices(found: Any, **options: Any) -> list[list[int]]:
    # as `transform_dataset` wraps it
    dataset = Transformed(found.create_torch_dataset(config(), 3, None), [])
    loader = found.TorchDataLoader(dataset, 2, shuffle=True, seed=4, **options).loader
    return [batch["index"].tolist() for batch in loader]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", Spec(lengths=(5, 6, 3), gop=4, cameras=()))
    return tmp_path / "set"


def test_samples_are_ours_in_our_order(data: Path) -> None:
    found = module(data)
    install(found)
    install(found)  # of no further effect
    sample = found.create_torch_dataset(config(), 3, None)[0]
    assert sample["action"].shape[0] == 3
    assert sample["prompt"] == "lift"
    sampler = EpisodeSampler(EpisodeDataset(data), seed=4, batch_size=2)
    order = list(sampler)
    assert indices(found) == [order[at : at + 2] for at in range(0, len(order), 2)]
    assert sorted(order) == list(range(14))


def test_resume_continues_behind_the_consumed_samples(data: Path) -> None:
    whole = module(data)
    resumed = module(data)
    install(whole)
    install(resumed, samples=6)
    assert indices(resumed) == indices(whole)[3:]


def test_other_datasets_and_validation_stay(data: Path) -> None:
    found = module(data)
    install(found)
    assert found.create_torch_dataset(config(repo_id="fake"), 3, None) == "theirs"
    loader = found.TorchDataLoader([1, 2, 3], 1, shuffle=False).loader
    assert [batch.item() for batch in loader] == [1, 2, 3]


def test_other_release_is_named(data: Path) -> None:
    found = module(data)
    del found.TorchDataLoader
    with pytest.raises(ImportError) as caught:
        install(found)
    assert "TorchDataLoader" in str(caught.value)
