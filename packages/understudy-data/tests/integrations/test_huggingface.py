"""`LoaderMixin`: epochs of our order, and exact resume; in the Trainer of transformers where it is
installed.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from understudy_base import ConfigError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.integrations.huggingface import LoaderMixin
from understudy_data.testing.datasets import Spec, write_dataset


@pytest.fixture
def data(tmp_path: Path) -> EpisodeDataset:
    write_dataset(tmp_path / "set", Spec(lengths=(5, 6, 3), gop=4, cameras=()))
    return EpisodeDataset(tmp_path / "set")


class Fake(LoaderMixin):
    """The attributes of a Trainer that the mixin reads."""

    def __init__(self, dataset: Any, step: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.train_dataset, self.state = dataset, SimpleNamespace(global_step=step)
        self.args = SimpleNamespace(
            per_device_train_batch_size=2,
            n_gpu=0,
            seed=1,
            data_seed=7,
            world_size=world_size,
            process_index=rank,
            gradient_accumulation_steps=2,
            ignore_data_skip=False,
        )


def test_epoch_has_each_frame(data: EpisodeDataset) -> None:
    trainer = Fake(data)
    batches = trainer.get_train_dataloader()
    seen = [index for batch in batches for index in batch["index"].tolist()]
    assert len(batches) == 8  # 7 have all frames, and the last step has two
    assert sorted(seen[:14]) == list(range(14))
    assert trainer.args.ignore_data_skip


def test_epochs_follow_each_other_without_a_gap(data: EpisodeDataset) -> None:
    trainer = Fake(data)
    batches = trainer.get_train_dataloader()
    seen: list[int] = []
    for _ in range(3):
        used = [index for batch in batches for index in batch["index"].tolist()]
        trainer.state.global_step += -(-len(batches) // 2)  # as a trainer counts an epoch
        seen += used
    assert len(seen) == 3 * 16
    assert all(sorted(seen[14 * epoch : 14 * (epoch + 1)]) == list(range(14)) for epoch in range(3))


def test_resumed_epoch_continues(data: EpisodeDataset) -> None:
    whole = [batch["index"].tolist() for batch in Fake(data).get_train_dataloader()]
    assert [
        batch["index"].tolist() for batch in Fake(data, step=2).get_train_dataloader()
    ] == whole[4:]
    following = [batch["index"].tolist() for batch in Fake(data, step=4).get_train_dataloader()]
    assert len(following) == 8  # the second epoch


def test_ranks_share_the_batch(data: EpisodeDataset) -> None:
    shares = [list(Fake(data, rank=rank, world_size=2).get_train_dataloader()) for rank in (0, 1)]
    assert [len(share) for share in shares] == [4, 4]  # of 4 samples on both ranks
    assert not {*shares[0][0]["index"].tolist()} & {*shares[1][0]["index"].tolist()}


def test_other_dataset_is_refused() -> None:
    with pytest.raises(ConfigError):
        Fake([1, 2]).get_train_dataloader()


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(index.tolist())
        return {"loss": self.layer(index[:, None].float()).square().mean()}


@pytest.mark.long
def test_trainer_of_transformers_resumes_exactly(data: EpisodeDataset, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: nox -s lerobot")

    class Trainer(LoaderMixin, transformers.Trainer):  # type: ignore[misc, name-defined]
        def prepare_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"index": batch["index"]}

    def train(out: str, steps: int, resume: bool = False) -> Linear:
        torch.manual_seed(0)
        model = Linear()
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path / out), max_steps=steps, save_steps=5,
            per_device_train_batch_size=2, use_cpu=True, report_to=[], logging_steps=1,
            lr_scheduler_type="constant", learning_rate=1e-5,
        )  # fmt: skip
        Trainer(model=model, args=args, train_dataset=data).train(resume_from_checkpoint=resume)
        return model

    whole = train("whole", 10)
    cut = train("cut", 5)
    resumed = train("cut", 10, resume=True)
    assert len(whole.seen) == 10
    assert [*cut.seen, *resumed.seen] == whole.seen
    assert torch.equal(whole.layer.weight, resumed.layer.weight)
