"""The short proofs at the start of a run with a policy that is not ours."""

import logging
import random
import sys
import time
from collections.abc import Mapping
from itertools import chain

import numpy as np
import torch

from understudy.policies.draws import keyed_generators
from understudy.policies.policy import Policy
from understudy.policies.registry import own_type_names, policy_type
from understudy.train.proofs.proofs import PAD, SHORT, Proof, make_proofs, rows_of, with_padding
from understudy.train.proofs.subject import OwnSubject
from understudy_base import Batch, summarize
from understudy_data import KeyedDraws

FEW = 4
"""Samples of a proof."""
SECONDS = 1.0
"""Time after which no further proof begins; a tenth of it is the most for one pass."""
MOST_PARAMETERS = 5_000_000
"""Largest network of which another one is built, on the host."""

logger = logging.getLogger(__name__)


def has_own_generator(kind: type) -> bool:
    """Return whether a class, or the module that defines it, keeps a random generator."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    places: list[Mapping[str, object]] = [vars(sys.modules.get(kind.__module__, sys))]
    places += [vars(base) for base in kind.__mro__[:-1]]
    values = chain.from_iterable(place.values() for place in places)
    return any(isinstance(value, kinds) for value in values)


def check_first_batch(policy: Policy, batch: Batch) -> list[Proof]:
    """Make the short proofs of a policy that is not ours, and warn of those that fail.

    Another policy of the same config is built on the host for it, with weights of its own, so that
    neither the run's weights, gradients, buffers nor the global generators of torch, numpy and
    Python take part. State that its code keeps in a module or a class is shared: such a policy is
    not asked where its module has a generator. Nothing is compiled. A large policy, and one that
    takes long to build or to compute, is not asked. An error of the proofs is logged and changes
    nothing. For runs of one process: a policy that exchanges something with other ranks would wait
    for them.

    Args:
        policy: that of the run.
        batch: its first batch, prepared.

    Returns:
        The proofs that failed.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    if policy.config.type in own_type_names() or size > MOST_PARAMETERS:
        return []
    if has_own_generator(type(policy)):
        return []
    began_building = time.monotonic()
    try:
        with keyed_generators(KeyedDraws(0).key("proofs"), torch.device("cpu")):
            kind = policy_type(policy.config.type)
            other = kind.build(policy.config, policy.normalizer.arrays())
        if time.monotonic() - began_building > SECONDS:
            return []
        few = {}
        for key, value in rows_of(batch, 0, FEW).items():
            few[key] = value.cpu() if isinstance(value, torch.Tensor) else value
        few[PAD] = with_padding(few[PAD])
        subject = OwnSubject(other, prepared=True)
        begun = time.monotonic()
        with torch.compiler.set_stance("force_eager"):
            subject.losses(few)
            if time.monotonic() - begun > SECONDS / 10:
                return []
            made = make_proofs(SHORT, subject, few, SECONDS)
    except Exception as error:
        logger.debug("no proofs of %s: %s", type(policy).__name__, summarize(error))
        return []
    failed = [proof for proof in made if proof.result == "failed"]
    for proof in failed:
        logger.warning("%s: %s (understudy check-policy)", policy.config.type, proof)
    return failed
