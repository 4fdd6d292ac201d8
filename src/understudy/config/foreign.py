"""Settings of other trainers, for messages about unknown ones. docs/migration.md has the same tables."""

_DATASET = "--data.root hf://datasets/OWNER/NAME"
_WEIGHTS = "--policy.weights FOLDER for released weights, --init-from FOLDER for a policy of understudy"
_FOLDER = "--policy.weights FOLDER of pi05, pi0 or lerobot-smolvla, --init-from FOLDER with its own normalization"
_NAME = "--output-dir runs/NAME"
_DECAYED = "--schedule.final-lr-ratio, a share of --optim.lr"
_TRACKER = "--log.trackers wandb"
_FREEZE = "--optim.freeze with patterns of parameter names"
_PART = "--micro-batch-size, samples of a forward pass; the number of passes follows from --batch-size"
_SOURCES = "data.sources, in a settings file"
_HELD_OUT = "--data.val-fraction, a share of the episodes"
_BUFFER = "--data.frames-in-flight, the frames over which the shuffle spreads"
_SHARD = "--parallel.dp-shard, which shards parameters, gradients and optimizer state"
_PROCESSES = "--launch N, or torchrun: no file of accelerate is read"
_PUSH = "understudy push RUN/policy --to hf://OWNER/NAME, after the training"

LEROBOT = {
    "config-path": "the settings file as first argument: understudy train FILE",
    "dataset.repo-id": _DATASET,
    "dataset.root": "--data.root FOLDER",
    "dataset.revision": "--data.root hf://datasets/OWNER/NAME@REVISION",
    "dataset.episodes": "--data.episodes",
    "dataset.image-transforms.enable": "--augment.shift",
    "dataset.streaming": "--data.root with an address: it is read while the run trains",
    "dataset.video-backend": "no setting: PyAV decodes",
    "rename-map": "`cameras` of each of data.sources, in a settings file",
    "tolerance-s": "no setting: frames belong to rows by their number",
    "policy.path": _FOLDER,
    "policy.pretrained-path": _FOLDER,
    "policy.repo-id": _PUSH,
    "policy.push-to-hub": _PUSH,
    "policy.device": "--device",
    "policy.dtype": "--precision",
    "policy.use-amp": "--precision bf16",
    "policy.compile-model": "--compile",
    "policy.gradient-checkpointing": "--activation-checkpoint full",
    "policy.chunk-size": "--data.chunk-size",
    "policy.n-action-steps": "--rollout.action-steps",
    "policy.num-inference-steps": "--rollout.sampling-steps",
    "policy.tokenizer-max-length": "--policy.prompt-tokens",
    "policy.normalization-mapping": "--data.normalize",
    "policy.freeze-vision-encoder": _FREEZE,
    "policy.train-expert-only": _FREEZE,
    "policy.optimizer-lr": "--optim.lr",
    "policy.optimizer-weight-decay": "--optim.weight-decay",
    "policy.optimizer-grad-clip-norm": "--optim.grad-clip-norm",
    "policy.scheduler-warmup-steps": "--schedule.warmup-steps",
    "policy.scheduler-decay-steps": "--schedule.decay-steps",
    "policy.scheduler-decay-lr": _DECAYED,
    "peft.r": "--lora.rank",
    "peft.method-type": "--lora.rank",
    "job-name": _NAME,
    "resume": "understudy resume RUN",
    "num-workers": "--loader.num-threads",
    "log-freq": "--log.every",
    "eval-freq": "--rollout.every",
    "save-freq": "--checkpoint.every",
    "save-checkpoint": "--checkpoint.every",
    "use-policy-training-preset": "no setting: the defaults are those of the preset",
    "optimizer.type": "no setting: AdamW",
    "optimizer.lr": "--optim.lr",
    "optimizer.weight-decay": "--optim.weight-decay",
    "optimizer.grad-clip-norm": "--optim.grad-clip-norm",
    "optimizer.betas": "--optim.beta1 and --optim.beta2",
    "scheduler.type": "--schedule.kind",
    "scheduler.num-warmup-steps": "--schedule.warmup-steps",
    "scheduler.num-decay-steps": "--schedule.decay-steps",
    "scheduler.peak-lr": "--optim.lr",
    "scheduler.decay-lr": _DECAYED,
    "env.type": "--rollout.env",
    "env.task": "--rollout.tasks",
    "eval.n-episodes": "--rollout.episodes",
    "eval.batch-size": "--rollout.num-envs",
    "wandb.enable": _TRACKER,
    "wandb.project": _TRACKER,
    "wandb.mode": "--log.trackers wandb, with WANDB_MODE in the environment",
}
"""Settings of `lerobot-train` -> the equivalent here."""

OPENPI = {
    "exp-name": _NAME,
    "checkpoint-base-dir": _NAME,
    "overwrite": "--output-dir with another name: a run is never overwritten",
    "resume": "understudy resume RUN",
    "data.repo-id": _DATASET,
    "repo-id": _DATASET,
    "assets-base-dir": "--data.stats FILE, openpi's norm_stats.json",
    "data.assets.assets-dir": "--data.stats FILE, openpi's norm_stats.json",
    "data.assets.asset-id": "--policy.norm-asset",
    "weight-loader.params-path": _WEIGHTS,
    "pytorch-weight-path": _WEIGHTS,
    "pytorch-training-precision": "--precision",
    "model.dtype": "--precision",
    "model.pi05": "--policy.type pi05",
    "model.action-horizon": "--data.chunk-size",
    "action-horizon": "--data.chunk-size",
    "model.max-token-len": "--policy.prompt-tokens",
    "freeze-filter": _FREEZE,
    "num-workers": "--loader.num-threads",
    "num-train-steps": "--steps",
    "log-interval": "--log.every",
    "save-interval": "--checkpoint.every",
    "keep-period": "--checkpoint.keep-last",
    "ema-decay": "--optim.ema.decay",
    "lr-schedule.warmup-steps": "--schedule.warmup-steps",
    "lr-schedule.peak-lr": "--optim.lr",
    "lr-schedule.decay-steps": "--schedule.decay-steps",
    "lr-schedule.decay-lr": _DECAYED,
    "optimizer.clip-gradient-norm": "--optim.grad-clip-norm",
    "optimizer.b1": "--optim.beta1",
    "optimizer.b2": "--optim.beta2",
    "fsdp-devices": "--parallel.dp-shard",
    "wandb-enabled": _TRACKER,
    "project-name": _TRACKER,
}
"""Settings of openpi's training scripts -> the equivalent here."""

OPENTAU = {
    "gradient-accumulation-steps": _PART,
    "dataloader-batch-size": _PART,
    "prefetch-factor": "--loader.memory, which batches made ahead fill",
    "val-freq": "--val.every",
    "val-split-ratio": _HELD_OUT,
    "dataset-mixture.val-split-ratio": _HELD_OUT,
    "dataset-mixture.datasets": _SOURCES,
    "dataset-mixture.weights": "weight of each of data.sources, in a settings file",
    "dataset-mixture.action-freq": "no setting: each source keeps its frame rate",
    "dataset-mixture.n-obs-history": "--policy.history of pi05, in seconds",
    "dataset-mixture.history-interval": "--policy.history of pi05, in seconds",
    "resolution": "--policy.image-size",
    "num-cams": "--data.cameras",
    "max-state-dim": "no setting: the widest source decides, and padding is masked",
    "max-action-dim": "no setting: the widest source decides, and padding is masked",
    "action-chunk": "--data.chunk-size",
    "loss-weighting": "--optim.loss-weights",
    "trace-nans": "no setting: a step that is not finite is skipped, up to --max-skipped-steps of them",
    "last-checkpoint-only": "--checkpoint.keep-last",
    "running-best-count": "--checkpoint.keep-best",
    "running-best-metric": "--checkpoint.keep-best",
    "episode-pool-size": _BUFFER,
    "buffer-size": _BUFFER,
    "video-decoder-cache-size": "--loader.memory, in bytes, for images and decoders together",
    "drop-n-first-frames": "--data.drop-n-first-frames",
    "drop-n-last-frames": "--data.drop-n-last-frames",
    "policy.attention-implementation": "--attention",
    "attn-implementation": "--attention",
    "resume-from": "understudy resume RUN",
    "dummy": "understudy bench PATH: loading alone, with --launch N of several processes",
}
"""Settings of OpenTau, and of streaming datasets, that LeRobot has not -> the equivalent here."""

COSMOS = {
    "job.experiment": "the settings file as first argument: understudy train FILE",
    "job.name": _NAME,
    "job.project": _TRACKER,
    "job.group": _TRACKER,
    "job.wandb-mode": "--log.trackers wandb, with WANDB_MODE in the environment",
    "model.precision": "--precision",
    "model.max-num-tokens-after-packing": "--max-num-tokens",
    "max-num-tokens-after-packing": "--max-num-tokens",
    "model.parallelism.data-parallel-shard-degree": "--parallel.dp-shard",
    "model.parallelism.data-parallel-replicate-degree": "--parallel.dp-replicate",
    "model.activation-checkpointing.mode": "--activation-checkpoint",
    "model.compile.enabled": "--compile",
    "model.ema.enabled": "--optim.ema.decay",
    "optimizer.lr": "--optim.lr",
    "optimizer.betas": "--optim.beta1 and --optim.beta2",
    "optimizer.eps": "--optim.eps",
    "optimizer.weight-decay": "--optim.weight-decay",
    "optimizer.keys-to-select": "--optim.freeze with patterns of the other parameters",
    "optimizer.lr-multipliers": "--optim.lr-scale",
    "scheduler.warm-up-steps": "--schedule.warmup-steps",
    "scheduler.cycle-lengths": "--schedule.decay-steps",
    "scheduler.f-max": "--optim.lr times f_max: the peak itself",
    "scheduler.f-min": _DECAYED,
    "scheduler.f-start": "no setting: warm-up starts at 1/warmup_steps of --optim.lr",
    "trainer.max-iter": "--steps",
    "trainer.logging-iter": "--log.every",
    "trainer.grad-accum-iter": _PART,
    "checkpoint.save-iter": "--checkpoint.every",
    "checkpoint.load-path": _WEIGHTS,
    "dataloader-train.max-samples-per-batch": "--max-samples",
    "dataloader-train.max-sequence-length": "--max-num-tokens",
    "dataloader-train.seed": "--seed",
    "iterable-shuffle": "--data.shuffle clips, the default: each rank has its own part of one order",
    "use-filter-dict": "--data.keep-ranges FILE",
    "filter-dict-path": "--data.keep-ranges FILE",
    "chunk-length": "--data.chunk-size",
}
"""Settings of cosmos-framework -> the equivalent here."""

ACCELERATE = {
    "num-processes": _PROCESSES,
    "num-machines": _PROCESSES,
    "machine-rank": _PROCESSES,
    "config-file": _PROCESSES,
    "mixed-precision": "--precision bf16",
    "dynamo-backend": "--compile",
    "gradient-clipping": "--optim.grad-clip-norm",
    "use-fsdp": _SHARD,
    "fsdp-sharding-strategy": _SHARD,
    "use-deepspeed": _SHARD,
    "deepspeed": _SHARD,
    "deepspeed-config-file": _SHARD,
    "zero-stage": _SHARD,
}
"""Options of `accelerate launch` and DeepSpeed -> the equivalent here."""

FOREIGN = {**ACCELERATE, **COSMOS, **OPENTAU, **OPENPI, **LEROBOT}
"""Settings of all of them."""


def equivalent(name: str) -> str | None:
    """Return the hint for a setting of another trainer, or for an item of one (`dataset_mixture.datasets.0.weight`)."""
    name = name.replace("_", "-")
    while name not in FOREIGN and name.count(".") > 1:
        name = name.rpartition(".")[0]
    return FOREIGN.get(name)
