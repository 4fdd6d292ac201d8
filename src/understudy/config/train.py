"""What a training run can be told, and nothing that reads it.

No torch here: the command line shows these settings in a fraction of a second. Resolution against a dataset (which
cameras, how wide an action is) happens in `train/run.py`; reading and checking files in `schema.py`.
"""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Literal, get_args

from understudy.bytesize import parse_bytes
from understudy.config.data import DataConfig
from understudy.config.declare import Ge, Gt, Interval, Le
from understudy.config.limits import LOADER_THREADS, THREADS, too_many
from understudy.config.rollout import RolloutEvery
from understudy.policies.registry import PolicySettings, policy_type

Mode = Literal["policy", "forward_dynamics", "inverse_dynamics"]


@dataclass(frozen=True)
class EmaConfig:
    """A moving average of the float32 weights, which is then validated and saved in their place."""

    decay: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of the average that a step leaves as it is; 0 keeps no average."""
    kind: Literal["constant", "power"] = "constant"
    """How the decay gets there from step t = 1, 2, ... on: `constant` is min(decay, (1 + t) / (10 + t)), `power` is
    min(decay, 1 - (1 + t) ** -power)."""
    power: Annotated[float, Interval(gt=0, le=1)] = 0.75
    """2/3 suits very long runs, 3/4 shorter ones."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW."""

    lr: Annotated[float, Interval(gt=0, lt=inf)] = 1e-3
    """Peak learning rate."""
    beta1: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Interval(ge=0, lt=1)] = 0.95
    eps: Annotated[float, Interval(gt=0, lt=inf)] = 1e-8
    weight_decay: Annotated[float, Interval(ge=0, lt=inf)] = 0.01
    """Decoupled weight decay, on matrices only (not on biases, gains and embeddings of one dimension)."""
    clip: Annotated[float, Gt(0)] = 1.0
    """Gradients are scaled down to this global norm; `inf` leaves them as they are."""
    lr_scale: dict[str, Annotated[float, Interval(ge=0, lt=inf)]] = field(default_factory=dict)
    """Factor on the learning rate by pattern of parameter names (`eyes.*`: 0.1); the first that fits counts."""
    weight_decay_of: dict[str, Annotated[float, Interval(ge=0, lt=inf)]] = field(default_factory=dict)
    """Weight decay by pattern of parameter names, whatever their dimensions; the first that fits counts."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameter names that are not trained: they keep every bit, and have no moments."""
    loss_weights: dict[str, Annotated[float, Interval(ge=0, lt=inf)]] = field(default_factory=dict)
    """Weight of a policy's loss terms by name; terms not named weigh 1, a term that weighs 0 is not computed."""
    ema: EmaConfig = field(default_factory=EmaConfig)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the steps."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Annotated[int, Interval(ge=0, le=10**12)] = 100
    """Steps of linear warm-up."""
    final: Annotated[float, Ge(0), Le(1)] = 0.0
    """Where the decay ends, as a fraction of the peak."""
    steps: Annotated[int, Interval(ge=1, le=10**12)] | None = None
    """Step at which the decay ends; none is the end of the run. Resuming with more steps keeps this one."""


@dataclass(frozen=True)
class AugmentConfig:
    """Changes made to training samples only, each drawn from (seed, purpose, position)."""

    shift: Annotated[int, Interval(ge=0, le=2**13)] = 4
    """Pictures are moved by up to this many pixels in each direction, edges repeated; 0 is off."""
    text_dropout: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Share of samples whose instruction is replaced by the empty text."""


@dataclass(frozen=True)
class ParallelConfig:
    """How the processes of a run share it: R replicas of S shards of the weights. (N, 1) is DDP, (1, N) FSDP2, (R, S)
    HSDP. Neither the samples nor, up to the sequence of sums, the numbers depend on it."""

    dp_shard: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """Over how many processes the weights, gradients and moments of one replica are spread."""
    dp_replicate: Annotated[int, Interval(ge=1, le=2**20)] | None = None
    """Replicas; none is as many as there are processes for."""
    timeout: Annotated[float, Gt(0)] = 600.0
    """Seconds that a process waits for another one that does nothing before it gives up. This is for one that hangs:
    one that has ended is noticed at once, and work that rank 0 does alone at the start may take any time."""


@dataclass(frozen=True)
class TrainConfig:
    """A training run. Everything that it consumes is a function of these settings and the dataset."""

    out: str = "runs/train"
    """Run directory, made by `train`; an existing run is never overwritten."""
    steps: Annotated[int, Interval(ge=1, le=10**12)] = 2500
    """Optimizer steps."""
    batch: Annotated[int, Interval(ge=1, le=2**24)] = 64
    """Samples per step, over all processes and micro-batches."""
    micro_batch: Annotated[int, Interval(ge=1, le=2**24)] | None = None
    """Samples that a process computes at a time; gradients are added up until the batch is whole. None is its share of
    the batch at once: the fastest where the memory bears it. With a number, a run in fp32 on CPUs is the same bits on
    however many processes; without, their number changes how sums are rounded."""
    seed: Annotated[int, Interval(ge=0, lt=2**63)] = 0
    """Decides the order, every draw inside a sample, and the first weights."""
    data: DataConfig = field(default_factory=DataConfig)
    mode: (
        Literal["policy", "forward_dynamics", "inverse_dynamics", "joint"]
        | dict[Mode, Annotated[float, Interval(ge=0, lt=inf)]]
    ) = "policy"
    """What is learnt from each sample: `policy` (actions from what is seen), `forward_dynamics` (the states that follow
    from given actions), `inverse_dynamics` (the actions between given states), `joint` (each of them equally often), or
    names with weights: each position draws its own by them."""
    policy: PolicySettings = field(default_factory=lambda: policy_type("flow").settings())
    """Type and settings of the policy; `type` names another one than `flow`."""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    init_from: str = ""
    """Folder of an exported policy to begin with: its weights and its normalisation. None named: fresh weights."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    max_skipped: Annotated[int, Interval(ge=1, le=10**12)] = 20
    """Steps in a row whose gradient is not finite (they change no weight), after which the run ends as an error."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the arithmetic is done; `auto` is a GPU per process where there are any."""
    precision: Literal["fp32", "bf16", "bf16-split"] = "fp32"
    """fp32: all arithmetic in float32. bf16: the network computes in bfloat16 from float32 weights. bf16-split: it also
    keeps them in bfloat16, and the 16 bits they lack beside them. Moments and checkpoints are float32 with all."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    compile: bool = False
    """Compile each block of the network (`torch.compile`): slower to start, faster from then on, on GPUs."""
    activation_checkpoint: Literal["none", "selective", "full"] = "none"
    """What of each block is computed again in the backward pass instead of being kept: nothing, what is cheap, all."""
    checkpoint_every: Annotated[int, Interval(ge=1, le=10**12)] = 500
    """Steps between checkpoints; there is always one at the end."""
    keep: Annotated[int, Interval(ge=1, le=10**9)] = 2
    """Checkpoints kept; an older one goes only when the newer ones are safe on disk."""
    keep_best: str = "none"
    """Also keep the checkpoint with the lowest held-out figure: `loss` over all samples, `macro` the mean of the tasks'
    losses, `weighted` by the mixture's weights, `head:NAME`, `source:NAME` or `task:NAME` of one group, `open_loop` the
    error of sampled actions. Each validation that is better than all before it then makes a checkpoint."""
    async_save: bool = False
    """Write checkpoints beside the training; costs a copy of the weights and moments in memory."""
    val_every: Annotated[int, Interval(ge=0, le=10**12)] = 500
    """Steps between validations, and one at the end; 0 never validates. Training does not notice."""
    val_frames: Annotated[int, Interval(ge=0, le=10**8)] = 100_000
    """Held-out frames that a validation judges at most. Of more it judges a sample, the same one each time: every
    source and task has its share of it, spread over its episodes. 0 judges all, which takes memory for each."""
    val_weights: Literal["average", "live"] = "average"
    """Which weights are validated: the moving average, where one is kept (`optim.ema.decay`), or those in training."""
    val_open_loop: Annotated[int, Interval(ge=0, le=10**12)] = 10
    """Of each source each so-many-th held-out frame is acted on, too, and the actions are compared with the recorded
    ones; 0 never."""
    rollout: RolloutEvery = field(default_factory=RolloutEvery)
    log_every: Annotated[int, Interval(ge=1, le=10**6)] = 20
    """Steps between visits to the host: metrics are written and the progress line is refreshed."""
    trackers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics go besides metrics.jsonl, which is always written."""
    threads: Annotated[int, Ge(1)] = 1
    """Arithmetic threads of torch. More than one can cost a factor of a hundred when the machine is busy, and another
    number may round sums differently."""
    loader_threads: Annotated[int, Ge(1)] | Literal["auto"] = "auto"
    """Threads that read and decode."""
    memory: str = "4GB"
    """How much the loader may hold; data that fits stays decoded in memory. The samples are the same with any value."""

    report: bool = True
    """Write report.html at the end."""

    def resolved(self) -> "TrainConfig":
        """With everything said that depends on other settings, so that changing those later changes nothing else."""
        sources = tuple(replace(source, name=name) for source, name in zip(self.data.sources, self.data.names()))
        return replace(
            self,
            data=replace(self.data, sources=sources),
            schedule=replace(self.schedule, steps=self.schedule.steps or self.steps),
        )

    def mode_weights(self) -> dict[str, float]:
        """The weight of each mode by name, in the sequence of `policies.modes.MODES`; their sum is 1."""
        if isinstance(self.mode, dict):
            named = {str(mode): weight for mode, weight in self.mode.items()}
        else:
            named = dict.fromkeys(get_args(Mode) if self.mode == "joint" else (self.mode,), 1.0)
        total = sum(named.values())
        return {mode: named.get(mode, 0.0) / total if total else 0.0 for mode in get_args(Mode)}

    def learns_dynamics(self) -> bool:
        """Whether any sample is learnt from in another mode than `policy`: then the policy is given future states."""
        return any(weight for mode, weight in self.mode_weights().items() if mode != "policy")

    def judged_mode(self) -> str:
        """The mode in which held-out frames are judged: as a robot acts if that is learnt, else the most trained."""
        weights = self.mode_weights()
        return "policy" if weights["policy"] else max(weights, key=lambda mode: weights[mode])

    def problems(self) -> list[str]:
        """What is wrong between fields, one line each."""
        found = too_many("threads", self.threads, THREADS)
        found += too_many("loader_threads", self.loader_threads, LOADER_THREADS)
        try:
            parse_bytes(self.memory)
        except ValueError as error:
            found.append(str(error))
        found += [f"data.{line}" for line in self.data.problems()]
        found += [f"rollout.{line}" for line in self.rollout.problems(self.data.chunk)]
        if self.rollout.every and not self.mode_weights()["policy"]:
            found.append(f"rollout.every: {self.rollout.every}: nobody learns to act when mode is {self.mode}")
        if not any(self.mode_weights().values()):
            found.append(f"mode: {self.mode}: no mode has a weight, so nothing would be learnt")
        found += [f"policy.{line}" for line in self.policy.problems()]
        if self.keep_best != "none" and not (self.val_every and self.data.holds_out()):
            never = "val_every" if not self.val_every else "data.val_fraction"
            found.append(f"keep_best: {self.keep_best} needs held-out losses, and with {never} 0 there are none")
        if self.micro_batch and self.batch % self.micro_batch:
            found.append(f"micro_batch: {self.micro_batch}: must divide the batch of {self.batch}")
        if self.precision == "bf16-split" and self.parallel.dp_shard > 1:
            found.append(
                f"precision: bf16-split saves nothing with parallel.dp_shard={self.parallel.dp_shard}: a float32 shard "
                f"takes 4 bytes, as do 2 + 2; use bf16, which computes the same way from float32 shards"
            )
        return found
