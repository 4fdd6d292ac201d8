"""`LoaderMixin`: the `Trainer` of transformers reads batches with `us.Loader`, and resumes at the
exact next sample.

    class MyTrainer(LoaderMixin, Trainer):
        pass

    data = us.EpisodeDataset(path)
    args = TrainingArguments(..., max_steps=1000)
    trainer = MyTrainer(model=model, args=args, train_dataset=data)

Accelerate loops need no class: `examples/streaming.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from understudy_base import ConfigError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader


class LoaderMixin:
    """Base class to write before `transformers.Trainer`.

    `train_dataset` is an `EpisodeDataset`. Override `prepare_batch` for a model with other argument
    names.

    Attributes:
        loader_options: arguments of `us.Loader`, such as `memory` and `num_threads`.
    """

    loader_options: dict[str, Any] = {}  # noqa: RUF012  # subclasses replace it
    args: Any
    state: Any
    train_dataset: Any

    def prepare_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the model for a batch of the loader; the batch itself by
        default.
        """
        return batch

    def get_train_dataloader(self) -> "EpochBatches":
        """Return the batches of this process. `Trainer` calls it at the start of a training.

        `ignore_data_skip` becomes True: the loader starts at the right sample, so the trainer has
        none to skip.

        Raises:
            ConfigError: `train_dataset` is no `EpisodeDataset`.
        """
        if not isinstance(self.train_dataset, EpisodeDataset):
            kind = type(self.train_dataset).__name__
            raise ConfigError(f"train_dataset is a {kind}; LoaderMixin reads an us.EpisodeDataset")
        self.args.ignore_data_skip = True
        micro_batch = self.args.per_device_train_batch_size * max(1, getattr(self.args, "n_gpu", 1))
        seed = self.args.data_seed
        if seed is None:
            seed = self.args.seed
        options = {"seed": seed}
        return EpochBatches(
            self.train_dataset,
            micro_batch * self.args.world_size,
            int(self.args.gradient_accumulation_steps),
            lambda: int(self.state.global_step),
            self.prepare_batch,
            {
                **options,
                "rank": self.args.process_index,
                "world_size": self.args.world_size,
                **self.loader_options,
            },
        )


class EpochBatches:
    """Batches of one process in passes of an epoch, from the present step of the training on."""

    def __init__(
        self,
        dataset: EpisodeDataset,
        batch_size: int,
        accumulated: int,
        step: Callable[[], int],
        prepare: Callable[[dict[str, Any]], dict[str, Any]],
        options: dict[str, Any],
    ) -> None:
        """Remember the arguments; nothing is opened.

        Args:
            dataset: the dataset.
            batch_size: samples of one forward pass over all processes.
            accumulated: such batches of a step.
            step: returns the number of steps that are done.
            prepare: makes a batch the arguments of the model.
            options: arguments of `Loader`.
        """
        self.dataset = dataset
        self.batch_size = batch_size
        self._accumulated = accumulated
        self._step = step
        self._prepare = prepare
        self._options = options

    def __len__(self) -> int:
        """Batches of an epoch, in whole steps; the last step is filled with samples of the next
        epoch.

        A trainer would cut the last step of other epochs short: the position would not follow from
        its steps.
        """
        return self._accumulated * -(-len(self.dataset) // (self.batch_size * self._accumulated))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rest of the present epoch."""
        start = self._step() * self._accumulated
        position = start * self.batch_size
        with Loader(
            self.dataset, batch_size=self.batch_size, position=position, **self._options
        ) as loader:
            for _, batch in zip(range(len(self) - start % len(self)), loader):
                yield self._prepare(batch)
