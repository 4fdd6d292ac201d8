"""A training run.

run                     from the first step to the last: `train` and `resume`
session                 a run on one process: restored, trained, exported
loop                    the training loop: train, log, validate, checkpoint
augment_batch           augmentation of a batch, and its way to the device
optimizer_step          one optimizer step
micro_batches           parts of a batch, by samples and by tokens
state                   policy, optimizer and average of a run
precision               the setting `precision`
precision_report        precision of any training loop, and the share of weights that a step moves
data                    the data of a run
validation              validation
proofs                  proofs of any policy, and the short form at the start of a run
checkpoint              checkpoints, the run directory, export
track                   metrics.jsonl and trackers
memory_check            memory of the state, against that of the machine
profiling               time and memory of a step
paths                   paths of the data and of the files that settings name
run_record              order.json: decisions that hold for the whole run
account                 the samples of a run up to a checkpoint
audit                   how often each frame was trained on
resume_check            changes on resume, and their consequences
startup_summary         summary of the data and of the trained parameters before the first step
run_hooks               work beside the training, by entry points
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from understudy_base import Record

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig


class _CallablePackage(ModuleType):
    """This package as the function `understudy.train`, which has its name."""

    def __call__(self, config: "TrainConfig | Record | str | Path") -> Path:
        """Train a policy to the end, or until a signal stops the run.

        Args:
            config: a mapping of settings, the path of a settings file, or a `TrainConfig`. The
                first two take the policy's defaults for settings that they leave out; a
                `TrainConfig` is complete. A policy type `FILE.py:NAME` in a mapping is trusted, as
                one of the command line; in a settings file it is not.

        Returns:
            The run directory; `understudy.load_policy` reads its policy.

        Raises:
            ConfigError: settings that cannot be used, or an existing run in that directory.
            DatasetError: the dataset cannot be used.
        """
        from understudy.config.train import TrainConfig
        from understudy.policies.own_code.types import name_by_hand
        from understudy.train.run import train
        from understudy_kit import complete, load, plain, validate, validate_new

        if isinstance(config, Mapping):
            policy = config.get("policy")
            if isinstance(policy, Mapping):
                name_by_hand(str(policy.get("type", "")))
            config = validate_new(TrainConfig, config)
        elif isinstance(config, str | Path):
            config = load(TrainConfig, config)
        else:
            config = validate(TrainConfig, plain(config))
        train(complete(config))
        return Path(config.output_dir)


sys.modules[__name__].__class__ = _CallablePackage
