"""Base class of policies: the interface of a network to training, validation, export, rollouts and
robots.

`understudy.policies.registry` lists the types. A new one derives `Policy`, implements `loss_terms`,
`counts`, `losses` and `act`, and is trained, resumed, validated, exported and played without a
change elsewhere.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from understudy.policies import batch as batches
from understudy.policies import policy_folder
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.returns import check_acts
from understudy.policies.common.layers import Linear
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import Draws, RandomSpec, Use, generate_draws, make_draws
from understudy.policies.losses import Imagined, Loss, valid_elements
from understudy.policies.registry import policy_type
from understudy.policies.weight_files import (
    OnMeta,
    ReadRows,
    StoredRows,
    TensorReader,
    check_state,
    fill_state,
    stored_shapes,
)
from understudy_base import ACTION, STATE, TASK, Batch, ConfigError, Record


class Policy(nn.Module):
    """Base class of policies.

    A policy is a function of its arguments: the batch and all random numbers come in, per-sample
    losses or actions come out. Batch and actions are in the robot's units; `normalizer` normalizes
    them.

    A batch has the keys of `input_keys`: each camera uint8 [B, 3, H, W], `observation.state` [B,
    S], `task` B strings. For training it also has `action` [B, T, A] and `action_is_pad` bool [B,
    T]. A key of `PolicySettings.windows` is [B, N, ...] there, with `<key>_is_pad` bool [B, N].
    Where robots differ, it has `head` int64 [B], `<key>_dim_is_pad` bool [B, dim] and
    `<camera>_is_missing` bool [B].
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("losses", "act")
    """Methods besides `forward` that compute with the weights; on several processes they gather the
    weights first.
    """
    validation_draws: int = 1
    """Independent draws per sample in a validation: the second axis of `Detail.sum`."""
    fills_weights: ClassVar[bool] = False
    """Whether `first_weights` and `stored_rows` give every parameter, so that a run can build the
    policy on the meta device.
    """
    scalar_losses: ClassVar[bool] = False
    """Whether `losses` returns the mean of each term over the batch, a tensor of shape [], instead
    of a `Loss`.

    Training weighs each mean by `counts`. Validation then has one group, all samples, and frames
    have no loss weights.
    """
    tied_weights: ClassVar[Mapping[str, str]] = {}
    """Names of weights that a stored state dict may lack -> the name there of an equal one."""
    packs: bool = False
    """Whether `losses` computes the valid tokens of a batch alone, where the policy has tokens;
    runs with `max_num_tokens` set it.
    """
    length_multiple: int = 1
    """Multiple to which `losses` pads texts, where the policy has tokens; runs with `compile` set
    it, so that compiled blocks meet few lengths.
    """
    STATE_HISTORY: ClassVar[str] = batches.STATES
    """Key that `split_states` gives to the states over time, [B, T, S]."""
    graphs: Any = None
    """Captured passes of acting (`policies/graphs.py`); None: there are none."""
    config: Any
    """A `PolicyConfig` with the settings of this type."""
    normalizer: Normalizer
    """Normalization of states and actions, and its inverse."""

    value_of = staticmethod(batches.value_of)
    prompts_of = staticmethod(batches.prompts_of)
    check_shape = staticmethod(batches.check_shape)
    check_image = staticmethod(batches.check_image)
    split_states = staticmethod(batches.split_states)

    def from_present(self, batch: Batch) -> dict[str, Any]:
        """Return a batch as `act` takes it, without past actions and the future that `losses`
        alone reads; see `batch.from_present`.
        """
        return batches.from_present(batch, self.config)

    def batch_to_device(self, batch: Batch) -> dict[str, Any]:
        """Copy a batch to the device of the weights; what the host reads stays there."""
        return batches.batch_to_device(batch, next(self.parameters()).device)

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Keys that a batch must have to act: the cameras, `observation.state` where used,
        `task`.
        """
        states = (STATE,) if self.config.state_dim else ()
        return (*self.config.cameras, *states, TASK)

    @property
    def past(self) -> Past:
        """Past that the policy sees."""
        return Past.of(self.config)

    def check_acts(self, folder: object) -> None:
        """Raise ValueError where the policy, which a folder holds, predicts no actions."""
        check_acts(self.config, folder)

    @property
    def norm_heads(self) -> tuple[str, ...]:
        """Names of the norm heads; their positions are the numbers under `head` in a batch."""
        return self.normalizer.heads

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms; the first is the loss of the actions."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of further figures that `losses` computes where `terms` names them, for
        validations; none by default.

        They are in the tables of a validation next to the loss terms, and no part of the loss.
        """
        return ()

    @property
    def modes(self) -> tuple[str, ...]:
        """Task modes that the policy can be trained in (`common/settings.py`)."""
        return (TaskMode.POLICY,)

    def trained_terms(self, mode: str) -> tuple[str, ...]:
        """Loss terms that a sample of a task mode trains.

        The default leaves out `flow`, `dynamics` and `images` where the mode gives what they
        predict.
        """
        return tuple(term for term in self.loss_terms if TaskMode.is_trained(term, mode))

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Random numbers per sample that `losses` ("train", "validation") or `act` ("act") takes;
        none by default.
        """
        return {}

    def make_draws(self, use: Use, seed: int, positions: Any, purpose: str = "") -> Draws:
        """Draw the numbers of `random_spec` on the CPU, keyed by position; see `draws.make_draws`.

        Args:
            use: what the numbers are for.
            seed: seed of the run.
            positions: int64 [B], the number that identifies each sample.
            purpose: prefix of the names in the key.
        """
        return make_draws(self.random_spec(use), seed, positions, purpose)

    def generate_draws(
        self, use: Use, count: int, generator: torch.Generator | None = None
    ) -> Draws:
        """Draw the numbers of `random_spec` for `count` samples on the CPU; see
        `draws.generate_draws`.
        """
        return generate_draws(self.random_spec(use), count, generator)

    def time_edges(self, term: str) -> tuple[float, ...]:
        """Return the edges of the intervals of flow time that the draws of a loss term in a
        validation lie in.

        They follow from `random_spec`: from `<term> time` or, for a term without its own,
        `flow time`, mapped from one number per interval.

        Returns:
            One flow time more than draws, ascending; () for a policy without flow times.
        """
        spec = self.random_spec("validation")
        times = spec.get(f"{term} time", spec.get("flow time"))
        if times is None or times.transform is None:
            return ()
        low, high = (
            times.transform(torch.full((1, *times.shape), end, dtype=torch.float64))[0]
            for end in (0.0, 1.0)
        )
        return (*low.tolist(), float(high[-1]))

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Prepare a batch on the CPU, in loader threads: tokenise texts, say. Called before
        `losses` and `act`.

        It reads neither weights nor random numbers, so that threads may run it next to a step.
        """
        return batch

    def check_ready(self) -> None:
        """Raise ConfigError where the policy lacks a file that `preprocess` needs. A run calls it
        at its start.
        """

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]: the divisor of the
        loss, known before it.

        A sum over the batch, int64 [], is enough where samples have no weights (`LOSS_WEIGHT`).
        With `scalar_losses` it must be per sample; the default are the unpadded elements of
        `action`.
        """
        if not self.scalar_losses:
            raise NotImplementedError
        mask = batch.get(f"{ACTION}_dim_is_pad")
        elements = valid_elements(batch[f"{ACTION}_is_pad"], 1, batch[ACTION].shape[-1], mask)
        return dict.fromkeys(self.loss_terms, elements)

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss] | dict[str, Tensor]:
        """Compute the sum and the count of each loss term for each sample; with `scalar_losses` the
        mean over them.

        Args:
            batch: see the class.
            draws: the numbers of `random_spec`, [B, ...] each.
            terms: loss terms to compute; None: all.
            detail: also fill `Loss.detail`, where the policy can.
        """
        raise NotImplementedError

    def missing_hooks(self) -> list[str]:
        """Names of the methods that each type of policy must have, and this one has not."""
        needed = ["loss_terms", "losses", "act"]
        if not self.scalar_losses:
            needed.append("counts")
        return [name for name in needed if getattr(type(self), name) is getattr(Policy, name)]

    def sample_losses(
        self, batch: Batch, draws: Draws, terms: Collection[str], detail: bool = False
    ) -> dict[str, Loss]:
        """Compute `losses`; with `scalar_losses` each element of a batch gets the mean over it.

        Sums of these over micro-batches and ranks, divided by the sums of the counts, weigh each
        element the same.

        Raises:
            ConfigError: the losses lack a term, or are not of the form that `scalar_losses` names.
        """
        losses: Record = self.losses(batch, draws, terms=terms, detail=detail)
        where = f"{type(self).__name__}.losses"
        if not isinstance(losses, Mapping):
            raise ConfigError(
                f"{where}: returns {_form(losses)}, not a mapping of the names in loss_terms"
            )
        for term in terms:
            if term not in losses:
                raise ConfigError(
                    f"{where}: no {term!r}, which loss_terms names; it returns {list(losses)}"
                )
            if not _is_form(losses[term], self.scalar_losses):
                raise ConfigError(
                    f"{where}: {term!r} is {_form(losses[term])}, and scalar_losses is "
                    f"{self.scalar_losses}: return Loss(sum, count) of understudy.policies, "
                    "tensors of shape [B] both, or set scalar_losses = True and return the mean "
                    "over the batch, a tensor of shape []"
                )
        if not self.scalar_losses:
            return dict(losses)
        counts = self.counts(batch, draws)
        return {term: Loss(losses[term].float() * counts[term], counts[term]) for term in terms}

    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Predict actions, float32 [B, T, A] in the robot's units; 0 in dimensions that a robot
        does not have.

        Args:
            batch: see the class.
            draws: the numbers of `random_spec("act")`.
            steps: integration steps, where the policy samples.
            mode: task mode, one of `modes` that leads to actions.
        """
        raise NotImplementedError

    def continue_chunk(
        self,
        batch: Batch,
        draws: Draws,
        executing: Tensor,
        delay: int,
        steps: int = 10,
        horizon: int | None = None,
    ) -> Tensor:
        """Predict actions that continue a chunk which the robot is still executing; optional
        (real-time chunking).

        Args:
            batch: see the class.
            draws: the numbers of `random_spec("act")`.
            executing: float32 [B, n, A], the rest of that chunk in the robot's units, its first
                action now; n <= T.
            delay: actions that the robot executes before the new ones arrive, 0 to n.
            steps: integration steps, where the policy samples.
            horizon: actions of `executing` that guide the new chunk, `delay` to n; None: the first
                `delay` are given.

        Returns:
            float32 [B, T, A] in the robot's units, the first action now.

        Raises:
            ValueError: the policy cannot continue chunks, or not with these numbers.
        """
        raise ValueError(
            f"a policy of type {self.config.type} cannot continue a chunk; call act without "
            "previous"
        )

    @property
    def response_length(self) -> int:
        """Most tokens of a text that the policy generates; 0: it generates none."""
        return 0

    def respond(
        self, batch: Batch, draws: Draws, length: int | None = None, temperature: float = 0.0
    ) -> list[str]:
        """Generate a text for each sample, such as the subtask of a planner; optional.

        Args:
            batch: see the class.
            draws: with a temperature, "response": numbers from 0 to 1, [B, length].
            length: most tokens, 1 to `response_length`; None: the latter.
            temperature: divisor of the logits; 0: the most likely token each time.

        Raises:
            ValueError: the policy generates no text.
        """
        raise ValueError(
            f"a policy of type {self.config.type} without responses generates no text; one of pi05 "
            "does that was trained with data.response and policy.response_tokens"
        )

    @property
    def continues_chunks(self) -> bool:
        """Whether the type has `continue_chunk`."""
        return type(self).continue_chunk is not Policy.continue_chunk

    def values(self, batch: Batch) -> Tensor:
        """Predict the return of each sample, float32 [B]; optional
        (`PredictsReturns`).

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        raise NotImplementedError

    @property
    def imagines(self) -> bool:
        """Whether `imagine` can predict the consequences of given actions."""
        return False

    def imagine(
        self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "forward_dynamics"
    ) -> Imagined:
        """Predict the states that follow, and images where the policy has them; optional
        (`imagines`).

        Args:
            batch: see the class; mode "forward_dynamics" needs `action` [B, T, A].
            draws: the numbers of `random_spec("act")`.
            steps: integration steps, where the policy samples.
            mode: "forward_dynamics": after the batch's actions; "policy": after the policy's own.

        Raises:
            ValueError: the policy predicts no future, or the mode gives it.
        """
        raise ValueError(f"a policy of type {self.config.type} imagines no future; see `imagines`")

    def describe_losses(self, terms: Collection[str]) -> list[str]:
        """Describe, in a line or none, the parts that the given loss terms train. A run prints it
        at its start.
        """
        return []

    def blocks(self) -> list[nn.Module]:
        """Modules to recompute, compile and shard one by one: called with equal shapes every step,
        not nested.
        """
        return []

    def float32_modules(self) -> list[nn.Module]:
        """Modules that compute in float32 from float32 weights whatever `config.compute` is."""
        return []

    def first_weights(self, seed: int) -> ReadRows:
        """Rows of the weights of a fresh run, by the names of `named_parameters`; needed with
        `fills_weights`.

        Args:
            seed: seed of the weights that are drawn.

        Raises:
            ValueError: a file of weights is damaged or not one of this network. OSError: it cannot
                be read.
        """
        raise NotImplementedError

    def start_weights(self) -> Mapping[str, Tensor] | None:
        """Weights that a setting of the policy names for a fresh run; None: those that the
        constructor drew.

        A policy with `fills_weights` has `first_weights` instead.

        Raises:
            ValueError: a file is damaged or not one of this network. OSError: it cannot be read.
        """
        return None

    def stored_rows(self, weights: TensorReader) -> StoredRows:
        """Fill the stored buffers, and return the rows of stored weights by the names of
        `named_parameters`.

        Raises:
            ValueError: names or shapes differ, or a weight is of integers.
        """
        needed = self.state_dict()
        parameters = dict(self.named_parameters(remove_duplicate=False))
        check_state(needed, weights, {})
        for name in needed.keys() - parameters.keys():
            path, _, leaf = name.rpartition(".")
            # a large one is meta
            setattr(self.get_submodule(path), leaf, weights.read(name).to(needed[name].dtype))
        return StoredRows(weights, {name: name for name in weights})

    def largest_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Preprocess a batch with instructions as long as the policy takes, for `understudy plan`.

        Different instructions remain different: a policy may encode each one once.
        """
        return self.preprocess({**batch, TASK: [text + " pick up" * 512 for text in batch[TASK]]})

    def prompt_room(self, prompts: Sequence[str]) -> tuple[int, int, str] | None:
        """Return the length of the longest of these prompts, the length behind which they are cut,
        and its setting.

        None: the policy does not know, because it has no tokenizer, or cuts nothing.
        """
        return None

    def tokens(self, batch: Batch) -> list[int] | None:
        """Count the tokens of each sample of a prepared batch, on the host; None: the policy has no
        tokens.
        """
        return None

    def processed_tokens(self, batch: Batch) -> int:
        """Count the tokens that `losses` computes for a prepared batch, padding included; 0 where
        it has none.
        """
        return sum(self.tokens(batch) or ())

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a state dict into the policy; tensors of files are read part by part.

        A policy with `fills_weights` may have parameters on the meta device, which it has to
        replace.

        Raises:
            ValueError: names or shapes differ.
        """
        tied = {name: other for name, other in self.tied_weights.items() if name not in weights}
        fill_state(self.state_dict(), weights, tied)

    def save(
        self,
        directory: str | Path,
        weights: Mapping[str, Tensor] | None = None,
        metadata: Record | None = None,
    ) -> None:
        """Write model.safetensors, config.json and normalisation.json; an older policy there is
        replaced atomically.

        Args:
            directory: the folder.
            weights: state dict to write; None: that of this policy.
            metadata: facts about the robots for config.json: names of dimensions, cameras, fps.
        """
        weights = self.state_dict() if weights is None else weights
        policy_folder.save(directory, self.config, self.normalizer.arrays(), weights, metadata)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Load a saved policy on the CPU, every weight and normalization bit-equal.

        Raises:
            ValueError: the folder holds no policy of this class, or a damaged one. OSError: it
                cannot be read.
        """
        policy = load(directory)
        if not isinstance(policy, cls):
            raise ValueError(f"{directory} holds a {type(policy).__name__}, not a {cls.__name__}")
        return policy


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Put a policy into its evaluation mode within this context."""
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


def _is_form(loss: Any, is_scalar: bool) -> bool:
    """Return whether a loss term is a mean over the batch, or a `Loss` per sample."""
    if is_scalar:
        return isinstance(loss, Tensor) and loss.ndim == 0
    if not (
        isinstance(loss, Loss) and isinstance(loss.sum, Tensor) and isinstance(loss.count, Tensor)
    ):
        return False
    return loss.sum.ndim == 1 and loss.count.shape == loss.sum.shape


def _form(loss: Any) -> str:
    if isinstance(loss, Tensor):
        return f"a tensor of shape {list(loss.shape)}"
    if isinstance(loss, Loss):
        return f"a Loss of {_form(loss.sum)} and {_form(loss.count)}"
    if isinstance(loss, tuple | list):
        return f"a {type(loss).__name__} of {len(loss)}"
    return f"a {type(loss).__name__}"


def load(directory: str | Path) -> Policy:
    """Load a saved policy of any registered type on the CPU; torch's random generators do not
    change.

    The memory next to the policy is a part of a tensor: weights are read into their place.

    Raises:
        ValueError: the folder holds no policy, or a damaged one. OSError: it cannot be read.
    """
    return build_saved(policy_folder.load(directory), directory)


def build_saved(saved: policy_folder.Saved, where: object, narrow: bool = False) -> Policy:
    """Build a policy with the content of its folder.

    Args:
        saved: the content.
        where: the folder, for errors.
        narrow: whether linear layers that compute in bfloat16 hold their weights so, for acting
            alone. They are rounded once and not in each call; the actions are the same.

    Raises:
        ValueError: weights and config contradict each other.
    """
    make = partial(policy_type(saved.config.type).build, saved.config, saved.normalization)
    policy: Policy | None
    with torch.random.fork_rng(devices=[]):  # building draws fresh weights, which are then replaced
        try:
            with OnMeta():
                policy = make()
        # its constructor computes with values, or a number is too large
        except (RuntimeError, TypeError):
            policy = None
        if policy is not None and not policy.fills_weights:
            # before a number in config.json chooses an amount of memory
            _check_shapes(policy, saved, where)
        if policy is None or (
            not policy.fills_weights and any(p.is_meta for p in policy.parameters())
        ):
            try:
                policy = make()
            except (RuntimeError, TypeError) as error:
                raise ValueError(
                    f"{where}: the network of this config cannot be built: {error}"
                ) from error
    if narrow:
        narrow_weights(policy)
    try:
        policy.load_weights(saved.weights)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return policy


def _check_shapes(policy: Policy, saved: policy_folder.Saved, where: object) -> None:
    """Raise ValueError where the network of a config has other shapes than the header of the stored
    weights.

    A policy with its own `load_weights` may fill names that are not stored.
    """
    stored = stored_shapes(saved.weights)
    for name, tensor in policy.state_dict().items():
        has_own = type(policy).load_weights is not Policy.load_weights
        if name not in stored and (has_own or name in policy.tied_weights):
            continue
        if stored.get(name) != (shape := tuple(tensor.shape)):
            there = stored.get(name, "missing")
            raise ValueError(
                f"{where}: the weights are not those of this config: {name} is {there}, and "
                f"config.json needs {shape}"
            )


def narrow_weights(policy: Policy) -> None:
    """Give the linear layers that compute in bfloat16 weights of that dtype, in place."""
    if policy.config.compute != "bfloat16":
        return
    whole = set(chain.from_iterable(top.modules() for top in policy.float32_modules()))
    for module in policy.modules():
        if isinstance(module, Linear) and module not in whole:
            module.to(torch.bfloat16)
