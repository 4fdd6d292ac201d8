"""Losses and actions of a policy under proof, with fixed random numbers and no trace.

`OwnSubject` is a `Policy`, whose losses are per sample and whose noise may come in. `Stranger` is a
module with LeRobot's interface: `forward(batch)` returns a loss, or (loss, dict), and
`select_action(batch)` actions.
"""

import inspect
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from understudy.policies.batch import batch_to_device, from_present
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.draws import keyed_generators, make_draws
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy, load
from understudy_base import ACTION, ConfigError
from understudy_data import KeyedDraws

RATES = ("p", "dropout", "dropout_p", "attention_dropout")
"""Attributes of modules that are rates of dropout, where they are floats."""


def is_dropout(module: nn.Module) -> bool:
    """Return whether a module is one of dropout, torch's or another by its name."""
    is_of_torch = isinstance(module, nn.modules.dropout._DropoutNd)
    return is_of_torch or "drop" in type(module).__name__.lower()


class Watched(dict[str, Any]):
    """A batch that knows the keys that were asked for."""

    def __init__(self, content: Mapping[str, Any], asked: set[str] | None = None) -> None:
        super().__init__(content)
        self.asked = set[str]() if asked is None else asked

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, as a dict."""
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        """Return all keys, which are then known to be asked for."""
        self.asked |= set(super().__iter__())
        return super().keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> Any:
        """Return all items."""
        self.keys()
        return super().items()

    def copy(self) -> "Watched":
        """Return a copy that reports to the same set."""
        return Watched(plain(self), self.asked)


def plain(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a batch without asking it for keys."""
    return dict(dict.items(batch)) if isinstance(batch, Watched) else dict(batch)


def cloned(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a batch with its tensors, which a policy may change in place."""
    copies = plain(batch)
    for key, value in copies.items():
        if isinstance(value, Tensor):
            copies[key] = value.clone()
    return copies


def watched(batch: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Let another content report to the set of a watched batch."""
    return Watched(content, batch.asked) if isinstance(batch, Watched) else dict(content)


class StillNoise(TorchFunctionMode):
    """While it is active, random numbers of torch are the same for every row of a tensor."""

    UNIFORM = ("rand", "rand_like", "uniform_", "_sample_dirichlet", "_standard_gamma")
    OTHER = ("randn", "randn_like", "normal", "normal_", "randint", "randint_like")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and replace random results."""
        drawn = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in (*self.UNIFORM, *self.OTHER) or not drawn.numel():
            return drawn
        if not drawn.is_floating_point():
            return torch.zeros_like(drawn)
        shape = drawn.shape[1:]
        parts = torch.arange(max(1, shape.numel()), dtype=torch.float64) * 0.37
        uniform = 0.05 + 0.9 * parts.frac()
        values = uniform if name in self.UNIFORM else 2 * uniform - 1
        row = values.to(drawn).view(shape) if shape else values[0].to(drawn)
        return (
            drawn.copy_(row.expand_as(drawn))
            if name.endswith("_")
            else row.expand_as(drawn).clone()
        )


class Subject:
    """A policy under proof."""

    by_position = False
    """Whether its noise comes in, drawn by position."""
    terms: tuple[str, ...] = ()

    def __init__(self, module: nn.Module, fresh: Callable[[], nn.Module] | None = None) -> None:
        self.module = module
        self.fresh = fresh
        """Makes another one with other weights."""
        tensors = [*module.parameters(), *module.buffers()]
        self.device = tensors[0].device if tensors else torch.device("cpu")

    @property
    def is_per_sample(self) -> bool:
        """Whether its losses are per sample."""
        return False

    def losses(self, batch: Mapping[str, Any], **how: Any) -> dict[str, Loss]:
        """Losses by term: sums and counts [B], or the mean of the batch, [], with count 1."""
        raise NotImplementedError

    def act(self, batch: Mapping[str, Any], positions: Any = None) -> Tensor:
        """Actions, [B, ...]."""
        raise NotImplementedError

    @property
    def no_actions(self) -> str:
        """Reason why it has no actions; "" where it has."""
        raise NotImplementedError

    def reload(self, pristine: nn.Module) -> nn.Module:
        """Save the policy, and load it into another one: a fresh one, or a copy from before."""
        raise NotImplementedError

    def scalar(self, losses: Mapping[str, Loss]) -> Tensor:
        """The loss of a batch."""
        parts = [loss.sum.sum() / loss.count.sum().clamp(min=1) for loss in losses.values()]
        return torch.stack(parts).sum()

    def figures(self, batch: Mapping[str, Any], **how: Any) -> dict[str, Tensor]:
        """Sums, counts and gradients by name."""
        losses = self.losses(batch, **how)
        found = {f"loss {term}": loss.sum.detach() for term, loss in losses.items()}
        found |= {f"count of {term}": loss.count for term, loss in losses.items()}
        scalar = self.scalar(losses)
        named = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if scalar.requires_grad and named:
            grads = torch.autograd.grad(scalar, [p for _, p in named], allow_unused=True)
            for (name, _), grad in zip(named, grads):
                if grad is not None:
                    found[f"gradient of {name}"] = grad
        return found

    @contextmanager
    def still(self, mode: str, seed: int, keeps: bool = True) -> Iterator[None]:
        """Fix generators and modes; afterwards modes and buffers are as they were.

        Args:
            mode: "train", "eval", or "dropless": training without dropout.
            seed: seed of the global generators.
            keeps: whether buffers are given their values back.
        """
        modules = list(self.module.modules())
        modes = [module.training for module in modules]
        buffers = [(b, b.detach().clone()) for b in self.module.buffers()] if keeps else []
        rates = []
        for module, name in product(modules, RATES):
            rate = module.__dict__.get(name)
            if isinstance(rate, float) and rate < 1 and (name != "p" or is_dropout(module)):
                rates.append((module, name, rate))
        self.module.train(mode != "eval")
        if mode == "dropless":
            for module, name, _ in rates:
                setattr(module, name, 0.0)
        try:
            with keyed_generators(KeyedDraws(seed).key("proofs"), self.device):
                yield
        finally:
            for module, was in zip(modules, modes):
                module.training = was
            for module, name, rate in rates:
                setattr(module, name, rate)
            with torch.no_grad():
                for buffer, value in buffers:
                    # a backward pass may still need one that has its value
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


class OwnSubject(Subject):
    """A `Policy`."""

    module: Policy

    def __init__(
        self, module: Policy, fresh: Callable[[], nn.Module] | None = None, prepared: bool = False
    ) -> None:
        super().__init__(module, fresh)
        if missing := module.missing_hooks():
            raise ConfigError(f"{type(module).__name__} lacks {', '.join(missing)}")
        self.terms = tuple(module.loss_terms)
        self.by_position = bool(module.random_spec("train"))
        self._prepared = prepared

    @property
    def is_per_sample(self) -> bool:
        """Whether its losses are per sample."""
        return not self.module.scalar_losses

    @property
    def no_actions(self) -> str:
        """Reason why it has no actions."""
        return "" if predicts_actions(self.module.config) else "the policy predicts no actions"

    def reload(self, pristine: nn.Module) -> nn.Module:
        """Save the folder and load it; a type without a name is built, and its weights loaded."""
        module = self.module
        with tempfile.TemporaryDirectory() as folder:
            module.save(folder)
            with suppress(ValueError):
                loaded = load(folder)
                if type(loaded) is type(module):
                    return loaded.to(self.device)
        made: Any = self.fresh or partial(type(module), module.config, module.normalizer.arrays())
        other = made()
        other.load_weights({name: value.clone() for name, value in module.state_dict().items()})
        return cast(nn.Module, other.to(self.device))

    def draws(self, use: Any, positions: Any, seed: int = 0) -> dict[str, Tensor]:
        """Noise of samples."""
        made = make_draws(self.module.random_spec(use), seed, np.asarray(positions), use)
        return {name: value.to(self.device) for name, value in made.items()}

    def losses(
        self, batch: Mapping[str, Any], *, mode: str = "train", seed: int = 0, draws_seed: int = 0,
        positions: Any = None, keeps: bool = True, counted: bool = False, detail: bool = False,
        still: bool = False, **unused: Any,
    ) -> dict[str, Loss]:  # fmt: skip
        """Losses by term; `counted`: with the counts of `counts`; `still`: random numbers that the
        policy draws itself are the same for each sample.
        """
        rows = range(len(batch[ACTION])) if positions is None else positions
        with self.still(mode, seed, keeps):
            inputs = self._inputs(batch)
            draws = self.draws("validation" if mode == "eval" else "train", rows, draws_seed)
            noise = StillNoise() if still else nullcontext()
            with noise:
                losses = self.module.sample_losses(inputs, draws, self.terms, detail=detail)
            if counted:
                counts = self.module.counts(inputs, draws)
                losses = {term: loss._replace(count=counts[term]) for term, loss in losses.items()}
        return losses

    def act(self, batch: Mapping[str, Any], positions: Any = None) -> Tensor:
        """Actions, [B, T, A]."""
        rows = range(len(batch[ACTION])) if positions is None else positions
        present = from_present(batch, self.module.config)
        with self.still("eval", 0):
            return self.module.act(self._inputs(present), self.draws("act", rows)).detach()

    def _inputs(self, batch: Mapping[str, Any]) -> Any:
        inputs = cloned(batch)
        prepared = inputs if self._prepared else self.module.preprocess(inputs)
        return watched(batch, batch_to_device(prepared, self.device))


class Stranger(Subject):
    """A module with LeRobot's interface."""

    terms = ("loss",)

    def losses(
        self, batch: Mapping[str, Any], *, mode: str = "train", seed: int = 0, keeps: bool = True,
        still: bool = False, reduction: str = "", **unused: Any,
    ) -> dict[str, Loss]:  # fmt: skip
        """The loss of a batch; `still`: the same random numbers for each sample."""
        options = {"reduction": reduction} if reduction else {}
        with self.still(mode, seed, keeps):
            inputs = watched(batch, batch_to_device(cloned(batch), self.device))
            if still:
                with StillNoise():
                    returned = self.module(inputs, **options)
            else:
                returned = self.module(inputs, **options)
        loss = returned[0] if isinstance(returned, tuple | list) and returned else returned
        if isinstance(loss, Mapping):
            loss = loss.get("loss")
        loss = getattr(loss, "loss", loss)
        if not isinstance(loss, Tensor) or loss.ndim > 1 or not loss.is_floating_point():
            raise ConfigError(
                f"{type(self.module).__name__}.forward returns a {type(returned).__name__} without "
                "a loss: return a tensor of shape [] or [B], (loss, dict), or a dict with 'loss'"
            )
        count = torch.ones(loss.shape, dtype=torch.int64, device=loss.device)
        return {"loss": Loss(loss, count)}

    @property
    def no_actions(self) -> str:
        """Reason why it has no actions."""
        return "" if hasattr(self.module, "select_action") else "the policy has no select_action"

    def reload(self, pristine: nn.Module) -> nn.Module:
        """Save the state dict and load it."""
        stored = io.BytesIO()
        torch.save(self.module.state_dict(), stored)
        stored.seek(0)
        other = self.fresh().to(self.device) if self.fresh else pristine
        other.load_state_dict(torch.load(stored, weights_only=True))
        return other

    @property
    def reduces(self) -> bool:
        """Whether `forward` takes `reduction`, as those of LeRobot's flow policies."""
        return "reduction" in inspect.signature(self.module.forward).parameters

    def act(self, batch: Mapping[str, Any], positions: Any = None) -> Tensor:
        """Actions of `select_action` after `reset`, with the same random numbers for each row."""
        module: Any = self.module
        history = getattr(getattr(module, "config", None), "n_obs_steps", 1) > 1
        observed = {}
        for key, value in batch_to_device(cloned(batch), self.device).items():
            if key.startswith(ACTION) or key.endswith("_is_pad"):
                continue
            observed[key] = value[:, -1] if history and isinstance(value, Tensor) else value
        with self.still("eval", 0), StillNoise(), torch.no_grad():
            if hasattr(module, "reset"):
                module.reset()
            actions: Tensor = module.select_action(observed)
            if hasattr(module, "reset"):
                module.reset()
        return actions.detach()
