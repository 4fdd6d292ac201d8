"""`check_policy`: the proofs of a policy as a report."""

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from understudy.policies.policy import Policy
from understudy.policies.registry import PolicyType
from understudy.train.proofs.proofs import ALL, Proof, make_proofs, with_padding
from understudy.train.proofs.subject import OwnSubject, Stranger, Subject
from understudy.train.proofs.targets import find_target
from understudy_base import ACTION, ConfigError, Record

NO_SETTINGS: Record = MappingProxyType({})


@dataclass(frozen=True)
class PolicyReport:
    """Result of `check_policy`; `str` of it has a line for each proof."""

    policy: str
    """Name of the policy."""
    proofs: tuple[Proof, ...]

    @property
    def passed(self) -> bool:
        """Whether no proof failed."""
        return all(proof.result != "failed" for proof in self.proofs)

    def __str__(self) -> str:
        """Format a line for each proof."""
        return "\n".join([f"{self.policy}:", *(f"  {proof}" for proof in self.proofs)])

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "passed": self.passed}


def check_policy(
    policy: str | Path | nn.Module | PolicyType | Any,
    *,
    settings: Record = NO_SETTINGS,
    data: str | Path = "",
    batch: Mapping[str, Any] | None = None,
) -> PolicyReport:
    """Prove of any policy, ours, LeRobot's or a stranger's, what a training relies on.

        print(us.check_policy("my_policy.py:MINE"))
        assert us.check_policy(my_module, batch=batch).passed

    | proof | meaning |
    |---|---|
    | padding | other and large values in padded rows (`action_is_pad` and each other mask of the \
batch) change no loss, no gradient and no count, not by a bit |
    | padding of NaN | nor does NaN |
    | denominator | padded steps are not in the number by which a loss is divided |
    | noise | each sample has noise of its own, each step another one |
    | noise by position | the rank changes nothing, nor does another split of the batch (1e-4) |
    | sums | sums and counts per sample add up to the loss of the batch |
    | repeat | the same random numbers give the same bits |
    | act | an observation gets the same actions alone and in a batch of eight (1e-4) |
    | save | a policy that is saved and loaded has the same outputs, to the bit |

    A module of a stranger has LeRobot's interface: `forward(batch)` returns a loss or (loss, dict),
    `select_action(batch)` actions. A proof that it cannot be asked says so. The policy is not
    changed: weights, gradients, buffers and modes stay, and no random generator moves. The proof
    `save` works on copies.

    Args:
        policy: MODULE:NAME or FILE.py:NAME of a policy, of its `PolicyType`, or of a class or
            function without arguments that returns it, or returns (policy, batch); the name of a
            registered type; a folder of a policy or a run; or one of these objects. Code that is
            named here is imported.
        settings: settings of a type, by name; `size` is "tiny" where there is one.
        data: dataset whose first samples are the batch; "": a batch is made from the needs that
            the policy declares (a `Policy`'s config, `config.input_features` of LeRobot's).
        batch: the batch itself, with B rows, at least 4, in each tensor and list.

    Returns:
        The proofs, each passed, failed with value, place, likely cause and remedy, or not asked
        with the reason.

    Raises:
        ConfigError: there is no such policy, it cannot be built, declares no inputs, or raises on
            its batch. DatasetError: the dataset cannot be read.
    """
    with ExitStack() as opened, _generators_kept():
        target = find_target(policy, settings, data, batch, opened)
        inputs = dict(target.batch)
        if ACTION not in inputs or len(inputs[ACTION]) < 2:
            raise ConfigError(f"batch: {sorted(inputs)}: needs {ACTION!r} of 2 samples or more")
        is_pad = inputs.get(f"{ACTION}_is_pad")
        if isinstance(is_pad, torch.Tensor) and not is_pad.any():
            inputs[f"{ACTION}_is_pad"] = with_padding(is_pad)
        subject: Subject = Stranger(target.module, target.fresh)
        if isinstance(target.module, Policy):
            subject = OwnSubject(target.module, target.fresh)
        try:
            subject.losses(inputs)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{target.name}: its loss raises {type(error).__name__}: {error}; the batch has "
                f"{', '.join(inputs)}"
            ) from error
        return PolicyReport(target.name, tuple(make_proofs(ALL, subject, inputs)))


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Seed that of torch, and give those of the host their states back after this context."""
    of_torch = torch.get_rng_state()
    of_numpy = np.random.get_state()  # noqa: NPY002
    of_python = random.getstate()
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
