"""Settings of a training run.

Dataclasses only, and no torch: the command line shows these settings in a fraction of a second.
`train/` resolves them against the dataset (cameras, widths of actions); `schema.py` reads and
checks files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from understudy.config.data import REST, DataConfig
from understudy.config.hints import TRAINER_NAMES
from understudy.config.intervals import Count, Factor, Period, Samples, Share, Steps
from understudy.config.lora import LoraConfig
from understudy.config.mesh import Batching, MeshSettings
from understudy.config.mesh import ParallelConfig as ParallelConfig
from understudy.config.rollout import RolloutEvery
from understudy.config.samples import AugmentConfig as AugmentConfig
from understudy.config.samples import Mode, SampleSettings, TaskModes
from understudy.policies.capabilities.future import images_ahead
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.capabilities.start import (
    ChoosesAdapters,
    StartsFromWeights,
    stored_chunk,
    weights_of,
)
from understudy.policies.capabilities.texts import learns_responses
from understudy.policies.registry import policy_type
from understudy.policies.settings import PolicySettings
from understudy_base import Record, parse_bytes
from understudy_kit import (
    DatasetConfig,
    Fixed,
    Fraction,
    HostLimit,
    Interval,
    OnResume,
    OtherNames,
    Positive,
    Scale,
)


@dataclass(frozen=True)
class EmaConfig:
    """Moving average of the float32 weights. It is validated and exported instead of the
    weights.
    """

    decay: Fraction = 0.0
    """Share of the average that a step leaves unchanged; 0 keeps no average."""
    kind: Literal["constant", "power"] = "constant"
    """Warm-up of the decay over steps t = 1, 2, ...: `constant` is min(decay, (1 + t) / (10 + t)),
    `power` is min(decay, 1 - (1 + t) ** -power).
    """
    power: Annotated[float, Interval(gt=0, le=1)] = 0.75
    """2/3 suits very long runs, 3/4 shorter ones."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW. A type of policy may bring other defaults, which a run prints at its start."""

    lr: Annotated[Scale, OnResume.COMPUTED] = 1e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    eps: Scale = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Factor = 0.01
    """Decoupled weight decay of the parameters that `weight_decay_on` names."""
    weight_decay_on: Literal["matrices", "all"] = "matrices"
    """Parameters with weight decay: `matrices` leaves out biases, gains and embeddings of one
    dimension.
    """
    grad_clip_norm: Positive = 1.0
    """Largest global norm of the gradients; larger ones are scaled down to it. `inf` disables
    clipping.
    """
    lr_scale: dict[str, Factor] = field(default_factory=dict)
    """Factor on the learning rate by pattern of parameter names (`vision.*`: 0.1); the first match
    wins.
    """
    weight_decay_of: dict[str, Factor] = field(default_factory=dict)
    """Weight decay by pattern of parameter names, for any number of dimensions; the first match
    wins.
    """
    freeze: Annotated[
        tuple[str, ...], Fixed("frozen parameters have no moments, trained ones have")
    ] = ()
    """Patterns of parameter names that are not trained, as in `vision.*` (vision encoder): they
    stay exactly unchanged and have no moments. A pattern that fits no parameter is an error at the
    start, which lists similar names.
    """
    train: Annotated[
        tuple[str, ...], Fixed("frozen parameters have no moments, trained ones have")
    ] = ()
    """Patterns of parameter names that are trained, as in `expert.*`; all others are frozen as by
    `freeze`, which precedes it. The default is all. A pattern that fits no parameter is an error at
    the start, which lists similar names.
    """
    loss_weights: dict[str, Factor] = field(default_factory=dict)
    """Weight of a policy's loss terms by name. The default is 1; a term of weight 0 is not
    computed.
    """
    ema: Annotated[EmaConfig, OnResume("the average decays at a different rate from here on")] = (
        field(default_factory=EmaConfig)
    )


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate over the steps. A type of policy may bring other defaults."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    """Shape of the decay."""
    warmup_steps: Period | None = None
    """Steps of linear warm-up; the default is 100, but a tenth of a run of less than 1,000 steps.
    Resuming with more steps keeps it.
    """
    final_lr_ratio: Share = 0.0
    """Learning rate at the end of the decay, as a fraction of the peak."""
    decay_steps: Steps | None = None
    """Step at which the decay ends; the default is the end of the run, also of one that resumes
    with more steps. A number that was set is kept.
    """
    warmup_from: Period = 0
    """Step at which a second warm-up begins; 0: none. `resume` with more steps sets it where the
    learning rate would rise more than tenfold at once, as in a run that had ended.
    """

    def warmup(self, steps: int) -> int:
        """Return the steps of the warm-up of a run of this length."""
        return min(100, steps // 10) if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True)
class LoaderConfig:
    """Resources of the loader. The samples do not depend on them."""

    num_threads: Count | Literal["auto"] = "auto"
    """Threads that read and decode."""
    memory: str = "4GB"
    """Memory of the loader, for all processes of a host together. A dataset that fits stays decoded
    in memory.
    """
    decoded_cache: Annotated[bool, OnResume.NO_EFFECT] = False
    """Keep decoded images on disk, at the policy's size, in the folder `data.cache`. The first
    epoch decodes them, later epochs and later runs read them. `data.cache_size` limits their total
    size (docs/loading.md).
    """


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, and which are kept. There is always one at the end."""

    every: Steps = 500
    """Steps between checkpoints."""
    keep_last: Annotated[int, Interval(ge=1, le=10**9)] = 2
    """Number of latest checkpoints to keep; an older one is removed when the newer ones are safe on
    disk.
    """
    keep_best: str = "loss"
    """Where there are validations, also keep the weights with the lowest figure, without moments,
    for `--checkpoint best` of `export` and `validate`: `loss` over all samples, `macro` the mean of
    the tasks' losses, `weighted` by the mixture's weights, `head:NAME`, `source:NAME` or
    `task:NAME` of one group, `open_loop` the error of sampled actions; `none` keeps none. They are
    written in the background, after each validation better than all before it.
    """
    async_save: bool = False
    """Write checkpoints in the background, from a copy of weights and moments in host memory."""


@dataclass(frozen=True)
class ValConfig:
    """Validation during the run, on whole episodes that are not trained on. It does not affect
    training.
    """

    every: Annotated[Period, OnResume.NO_EFFECT] = 500
    """Steps between validations, with one more at the end; 0 disables validation."""
    frames: Annotated[
        int,
        Interval(ge=0, le=10**8),
        OnResume(
            "validation losses are those of another sample of frames from here on; does not affect "
            "training"
        ),
    ] = 100_000
    """Largest number of frames in a validation. Of more frames a fixed sample is taken: every
    source and task has its share of it, spread over its episodes. 0 takes all frames (memory grows
    with their number).
    """
    open_loop_every: Annotated[Period, OnResume.NO_EFFECT] = 10
    """Compute the open-loop action error on every N-th validation frame of each source; 0 disables
    it.
    """


@dataclass(frozen=True)
class LogConfig:
    """Figures of the run, besides metrics.jsonl, which is always written."""

    every: Annotated[int, Interval(ge=1, le=10**6)] = 20
    """Steps between reads of the device: metrics are written and the progress line is updated."""
    trackers: Annotated[
        tuple[Literal["tensorboard", "wandb", "trackio"], ...],
        OnResume("a new tracker gets everything from the first step on"),
    ] = ()
    """Trackers that mirror metrics.jsonl."""
    report: bool = True
    """Write report.html at the end."""


@dataclass(frozen=True)
class TrainConfig:
    """A training run. Everything it consumes is a function of these settings and the dataset."""

    OTHER_NAMES: ClassVar[OtherNames] = TRAINER_NAMES
    UNCAPPED: ClassVar[tuple[str, ...]] = ("max_num_tokens", "max_samples")
    """Limits for which -1 is none."""

    output_dir: Annotated[str, OnResume.NO_EFFECT] = "runs/train"
    """Run directory, created by `train`; an existing run is never overwritten."""
    steps: Annotated[Steps, OnResume.COMPUTED] = 2500
    """Optimizer steps."""
    batch_size: Annotated[Samples, OnResume.COMPUTED] = 64
    """Samples per step, over all processes and micro-batches. A batch may span two epochs, so none
    is incomplete and no sample is dropped.
    """
    micro_batch_size: Annotated[Samples | None, OnResume.ROUNDING] = None
    """Samples per forward pass of a process; gradients are accumulated up to the whole batch. The
    default is the whole share of the process, the fastest where it fits into memory. If set, fp32
    CPU runs are bit-identical for any number of processes. If not, their number changes the
    rounding of sums.
    """
    max_num_tokens: Annotated[
        Annotated[int, Interval(ge=1, le=2**40)] | None, OnResume.ROUNDING
    ] = None
    """Instead of a fixed micro-batch: fill each forward pass of a process, in sample order, up to
    this many tokens; -1: no limit. They are those of images and texts without padding, and action
    tokens times `policy.noise_samples`. A single sample must fit, with the longest texts that the
    policy takes.
    """
    max_samples: Annotated[Samples | None, OnResume.ROUNDING] = None
    """Upper limit of samples per forward pass of a process, mainly beside `max_num_tokens`. It need
    not divide the batch. For a fixed size use `micro_batch_size`.
    """
    seed: Annotated[int, Interval(ge=0, lt=2**63), Fixed("it decides the order and every draw")] = 0
    """Seed of the order, of every draw inside a sample, and of the first weights."""
    data: Annotated[DataConfig, Fixed.DATA] = field(default_factory=DataConfig)
    mode: Annotated[
        Literal["policy", "forward_dynamics", "inverse_dynamics", "joint"] | dict[Mode, Factor],
        Fixed("it decides the task mode of each position, and whether the network predicts states"),
    ] = "policy"
    """Task mode of the samples: `policy` (actions from observations), `forward_dynamics` (future
    states from given actions), `inverse_dynamics` (actions between given states), `joint` (each
    equally often), or weights by name, as in `policy 0.5 inverse_dynamics 0.5`: each sample draws
    its mode by them. Of the built-in types, flow and world_action have all modes, the others
    `policy` alone; world_action also predicts future images, and trains `policy` on all samples of
    a run that has it.
    """
    policy: Annotated[PolicySettings, Fixed("the weights belong to another network")] = field(
        default_factory=lambda: policy_type("flow").settings()
    )
    """Type and settings of the policy; `type` selects another one than `flow`."""
    augment: Annotated[AugmentConfig, OnResume.SAME_SAMPLES] = field(default_factory=AugmentConfig)
    init_from: Annotated[str, Fixed("the run has started")] = ""
    """Policy exported by understudy, whose weights and normalization the run starts from; the
    default is fresh weights. For released weights of pi05, pi0 and SmolVLA use `policy.weights`.
    """
    optim: Annotated[OptimConfig, OnResume.FROM_HERE] = field(default_factory=OptimConfig)
    lora: Annotated[LoraConfig, Fixed("adapters of another kind would be another run")] = field(
        default_factory=LoraConfig
    )
    schedule: Annotated[ScheduleConfig, OnResume.COMPUTED] = field(default_factory=ScheduleConfig)
    max_skipped_steps: Annotated[Steps, OnResume.NO_EFFECT] = 20
    """Consecutive steps with a gradient that is not finite (they change no weight) after which the
    run fails.
    """
    device: Annotated[Literal["auto", "cpu", "cuda"], OnResume.ROUNDING] = "auto"
    """Device of the arithmetic; `auto` takes a GPU per process where there are any. `--launch N`
    starts N processes.
    """
    precision: Annotated[
        Literal["fp32", "bf16", "bf16-split"],
        OnResume(
            "the checkpoint's float32 values are loaded bit for bit; "
            f"{OnResume.ROUNDING.consequence}"
        ),
    ] = "fp32"
    """Arithmetic of the network; trained weights keep float32 accuracy in all three. `fp32`:
    float32. `bf16`: bfloat16 arithmetic on float32 weights. `bf16-split`: each float32 weight as a
    bfloat16 plus its remaining 16 bits, so the network needs no second copy. Moments and
    checkpoints are float32.
    """
    parallel: Annotated[ParallelConfig, OnResume.ROUNDING] = field(default_factory=ParallelConfig)
    compile: Annotated[bool, OnResume.ROUNDING] = False
    """Compile each block of the network (`torch.compile`): slower to start, then faster, on GPUs.
    """
    activation_checkpoint: Annotated[
        Literal["none", "selective", "full"],
        OnResume("the same numbers, with different memory and time"),
    ] = "none"
    """Activations that are recomputed in the backward pass, which saves memory and takes time:
    none, the cheap ones of each block (`selective`), or all of them (`full`).
    """
    activation_checkpoint_blocks: Annotated[
        tuple[str, ...], OnResume("the same numbers, with different memory and time")
    ] = ()
    """Blocks whose activations are recomputed: a number N for every N-th one (N, 2 N, ...), or
    patterns of module names (`vision.*`). The default is all.
    """
    attention: Annotated[Literal["sdpa", "eager"], OnResume.ROUNDING] = "sdpa"
    """Attention of the step and of validation: `sdpa` is the kernel that torch picks, `eager` the
    matrix products and the softmax one by one, for a comparison in `profile`. Exported policies
    always have `sdpa`.
    """
    loader: Annotated[LoaderConfig, OnResume.NO_EFFECT] = field(default_factory=LoaderConfig)
    checkpoint: Annotated[CheckpointConfig, OnResume.NO_EFFECT] = field(
        default_factory=CheckpointConfig
    )
    val: ValConfig = field(default_factory=ValConfig)
    rollout: Annotated[
        RolloutEvery, OnResume("applies to later rollouts; does not affect training")
    ] = field(default_factory=RolloutEvery)
    log: Annotated[LogConfig, OnResume.NO_EFFECT] = field(default_factory=LogConfig)
    torch_threads: Annotated[Count, OnResume.ROUNDING] = 1
    """Threads of torch's arithmetic. More than one can cost a factor of a hundred on a busy
    machine, and another number may round sums differently.
    """

    @staticmethod
    def expanded(content: Record, where: object = None) -> Record:
        """Return settings in which `data.sources` has an entry for each dataset
        (`source_lists.py`).
        """
        from understudy_kit import expand_settings

        return expand_settings(content, where)

    def resolved(self) -> "TrainConfig":
        """Fill in defaults that depend on other settings, so that changing those later changes
        nothing else.
        """
        sources = tuple(
            replace(source, name=name) for source, name in zip(self.data.sources, self.data.names())
        )
        config = self.with_policy_defaults()
        policy = config.policy
        if isinstance(policy, StartsFromWeights):
            policy = policy.started()
        targets = policy.LORA_TARGETS
        if isinstance(policy, ChoosesAdapters):
            targets = policy.lora_targets()
        schedule = self.schedule
        return replace(
            config,
            policy=policy,
            data=replace(config.data, sources=sources),
            lora=self.lora.resolved(targets),
            schedule=replace(schedule, warmup_steps=schedule.warmup(self.steps)),
        )

    def with_policy_defaults(self) -> "TrainConfig":
        """Fill in defaults that depend on the policy alone; a run has them from its start, also on
        resume.
        """
        normalize = self.data.normalize or self.policy.NORMALIZE
        if isinstance(self.data.normalize, dict):
            normalize = {REST: self.policy.NORMALIZE, **self.data.normalize}
        chunk_size = self.data.chunk_size
        if not chunk_size:
            chunk_size = 1
            if predicts_actions(self.policy):
                chunk_size = stored_chunk(self.policy) or self.data.actions_per_chunk
        data = replace(self.data, normalize=normalize, chunk_size=chunk_size)
        return replace(self, data=data, policy=self.policy.resolved())

    def run_defaults(self) -> dict[str, Any]:
        """Return the settings that the policy brings for a run that does not set them, those of a
        group nested.

        Raises:
            MissingExtraError: they are those of a package that is not installed.
        """
        brought = dict(self.policy.run_defaults(self.steps, self.lora.rank))
        for name, value in brought.items():
            if isinstance(value, Mapping):
                brought[name] = dict(value)
        if self.data.sources:
            for name in DatasetConfig.__dataclass_fields__:
                brought.get("data", {}).pop(name, None)  # each source has its own
        return brought

    def __post_init__(self) -> None:
        for name in self.UNCAPPED:
            if getattr(self, name) == -1:
                object.__setattr__(self, name, None)

    @property
    def batching(self) -> Batching:
        """The samples of a step and of its forward passes."""
        return Batching(
            self.batch_size, self.micro_batch_size, self.max_num_tokens, self.max_samples
        )

    @property
    def mesh(self) -> MeshSettings:
        """The settings that its processes have to fit."""
        return MeshSettings(self.parallel, self.device, self.precision, self.batching)

    def recomputation(self) -> str:
        """Return the mode and the blocks of activation checkpointing as text."""
        mode = self.activation_checkpoint
        blocks = self.activation_checkpoint_blocks
        if mode == "none" or not blocks:
            return mode
        number = len(blocks) == 1 and blocks[0].isdecimal()
        return (
            f"{mode}, 1 of {blocks[0]} blocks" if number else f"{mode}, blocks {' '.join(blocks)}"
        )

    @property
    def modes(self) -> TaskModes:
        """The task modes of its samples."""
        return TaskModes(self.mode)

    @property
    def samples(self) -> SampleSettings:
        """The settings that decide its samples."""
        return SampleSettings(self.data, self.augment, self.modes, self.policy)

    def rollout_problems(self) -> list[str]:
        """Return broken rules of rollouts, which depend on the chunk (`with_policy_defaults`), one
        line each.
        """
        return [f"rollout.{line}" for line in self.rollout.problems(self.data.actions_per_chunk)]

    def problems(self) -> list[str]:
        """Return broken rules between fields, one line each; `rollout_problems` where the chunk is
        known.
        """
        errors = HostLimit.THREADS.problems("torch_threads", self.torch_threads)
        errors += HostLimit.LOADER_THREADS.problems("loader.num_threads", self.loader.num_threads)
        try:
            parse_bytes(self.loader.memory)
        except ValueError as error:
            errors.append(f"loader.{error}")
        errors += [f"data.{line}" for line in self.data.problems()]
        # otherwise the weights decide the chunk
        if self.data.chunk_size or not weights_of(self.policy):
            errors += self.rollout_problems()
        acts = predicts_actions(self.policy) and self.modes.weights()["policy"]
        if self.rollout.every and not acts:
            run = f"mode {self.mode} of policy.type {self.policy.type}"
            errors.append(
                f"rollout.every: {self.rollout.every}: {run} trains no policy to act; set it to 0"
            )
        if not any(self.modes.weights().values()):
            errors.append(f"mode: {self.mode}: no mode has a weight, so nothing would be trained")
        errors += [f"policy.{line}" for line in self.policy.problems()]
        if self.init_from and (released := weights_of(self.policy)):
            errors.append(
                f"init_from: {self.init_from}: policy.weights {released} is another start: leave "
                "out one of both"
            )
        named = [source.response for source in self.data.mixed() if source.response]
        if named and not learns_responses(self.policy):
            fix = "set policy.response_tokens of a policy that has it"
            errors.append(f"data.response: {named[0]}: this policy learns no responses; {fix}")
        if learns_responses(self.policy) and not named and not self.data.response:
            errors.append(
                "data.response: required: the policy learns responses (policy.response_tokens)"
            )
        keep_best = self.checkpoint.keep_best
        if keep_best not in ("none", "loss") and not (
            self.val.every and self.data.has_validation()
        ):
            missing = "val.every" if not self.val.every else "data.val_fraction"
            errors.append(
                f"checkpoint.keep_best: {keep_best} needs validations, and {missing} is 0"
            )
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            errors.append(
                f"micro_batch_size: {self.micro_batch_size}: must divide the batch_size of "
                f"{self.batch_size}"
            )
        if self.micro_batch_size and (limits := self.max_num_tokens or self.max_samples):
            name = "max_num_tokens" if self.max_num_tokens else "max_samples"
            errors.append(
                f"micro_batch_size: {self.micro_batch_size}: sets equal parts, and {name} "
                f"({limits}) limits them: leave out one of both"
            )
        if self.activation_checkpoint_blocks and self.activation_checkpoint == "none":
            blocks = " ".join(self.activation_checkpoint_blocks)
            errors.append(
                f"activation_checkpoint_blocks: {blocks}: activation_checkpoint is none; set "
                "selective or full"
            )
        if self.attention == "eager" and not self.policy.TORCH_ATTENTION:
            errors.append(
                f"attention: eager: changes nothing for {self.policy.type}, which has no attention "
                "of torch"
            )
        if self.attention == "eager" and self.max_num_tokens and self.device != "cpu":
            errors.append(
                f"attention: eager: packed tokens (max_num_tokens {self.max_num_tokens}) have a "
                "kernel of their own; leave out one of both, or set device to cpu"
            )
        errors += self._window_problems()
        if self.precision == "bf16-split" and self.parallel.dp_shard > 1:
            errors.append(
                "precision: bf16-split saves nothing with "
                f"parallel.dp_shard={self.parallel.dp_shard}: a float32 shard takes 4 bytes, as do "
                "2 + 2; use bf16, which computes the same way from float32 shards"
            )
        return errors

    def _window_problems(self) -> list[str]:
        """Return a line for each key that would have windows of the past and of the future."""
        if not self.modes.learn_dynamics():
            return []
        past = Past.of(self.policy)
        both = {"states": past.states}
        if images_ahead(self.policy, self.data.actions_per_chunk):
            both["images"] = past.images
        return [
            f"mode: {self.mode}: trains {name} that follow, and policy.history gives the policy "
            f"past {name}: a batch has one window of a key, so leave out one of both"
            for name, times in both.items()
            if times
        ]
