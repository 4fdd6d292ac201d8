"""The short proofs at the start of a run with a policy that is not ours."""

import logging
import time

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


def check_first_batch(policy: Policy, batch: Batch) -> list[Proof]:
    """Make the short proofs of a policy that is not ours, and warn of those that fail.

    Another policy of the same config is built on the host for it, with weights of its own, so that
    neither the run's weights, gradients, buffers nor generators take part. A large policy, and one
    that takes long, is not asked. An error of the proofs is logged and changes nothing. For runs of
    one process: a policy that exchanges something with other ranks would wait for them.

    Args:
        policy: that of the run.
        batch: its first batch, prepared.

    Returns:
        The proofs that failed.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    if policy.config.type in own_type_names() or size > MOST_PARAMETERS:
        return []
    try:
        with keyed_generators(KeyedDraws(0).key("proofs"), torch.device("cpu")):
            kind = policy_type(policy.config.type)
            other = kind.build(policy.config, policy.normalizer.arrays())
        few = {}
        for key, value in rows_of(batch, 0, FEW).items():
            few[key] = value.cpu() if isinstance(value, torch.Tensor) else value
        few[PAD] = with_padding(few[PAD])
        subject = OwnSubject(other, prepared=True)
        begun = time.monotonic()
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
