"""Weights of loss terms."""

from collections.abc import Iterable, Mapping

from understudy.errors import ConfigError


def loss_weights(terms: Iterable[str], chosen: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each loss term to compute; terms without a setting weigh 1, terms that weigh 0 are left out.

    Args:
        terms: names of the policy's loss terms.
        chosen: loss term -> weight, from the settings.

    Raises:
        ConfigError: a weight for a term that the policy does not have, or no term with a weight.
    """
    terms = list(terms)
    if strangers := sorted(set(chosen) - set(terms)):
        raise ConfigError(f"optim.loss_weights: the policy has no term {strangers[0]!r}, it has {', '.join(terms)}")
    weights = {term: chosen.get(term, 1.0) for term in terms}
    if not any(weights.values()):
        raise ConfigError("optim.loss_weights: every term weighs 0: there is nothing to learn")
    return {term: weight for term, weight in weights.items() if weight}
