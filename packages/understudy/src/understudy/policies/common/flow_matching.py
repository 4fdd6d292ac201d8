"""Flow matching on action chunks: the path, its velocity, the times, and the Euler integration.

Convention (that of the published pi0 code, so that times can be compared number by number): `time`
1 is pure noise and `time` 0 is the action chunk,

    x_t = t * noise + (1 - t) * actions,        velocity  u = d x_t / d t = noise - actions,

and sampling walks from t = 1 down to t = 0. (The paper writes tau = 1 - t.) Sources: Lipman et al.
2023, "Flow Matching for Generative Modeling", section 4.1 (optimal-transport path); Black et al.
2024, "pi0: A Vision-Language- Action Flow Model for General Robot Control", section IV.

Real-time chunking: a new chunk of actions that continues the one a robot is still executing.

While the network computes, the robot executes the first `delay` actions of the chunk at hand, so
those are decided. Two ways let the new chunk agree with them:

    given      They enter without noise, at flow time 0. The policy was trained that way
               (`max_delay`; Black et al. 2025, "Training-Time Action Conditioning for Efficient
               Real-Time Chunking").
    guided     Each step also moves towards them, through the Jacobian of the estimated chunk, and
               less strongly towards the actions after them. Any flow policy can do it (Black,
               Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies",
               after Song et al. 2023, "Pseudoinverse-Guided Diffusion Models").

Both work on a velocity field (x [B, T, dim], time [B] or [B, T]) -> [B, T, dim], in the network's
units.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

VECTOR = 64
"""Numbers: at least the vector width of any CPU (AVX-512: twice 16 of float32)."""
MIN_PERIOD = 4e-3
MAX_PERIOD = 4.0
"""Periods of `time_features`, as in pi0."""


def noisy_actions(actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Compute x_t on the straight path. actions, noise [..., T, A] float32, time [...] in [0, 1] ->
    [..., T, A].
    """
    t = time[..., None, None]
    return t * noise + (1 - t) * actions


def velocity(actions: Tensor, noise: Tensor) -> Tensor:
    """Compute the velocity of the path, the target of the network; equal at every time. [..., T,
    A].
    """
    return noise - actions


def spread_times(uniform: Tensor, least: float = 0.0) -> Tensor:
    """Map uniform draws to flow times, one stratum per draw of a sample.

    Args:
        uniform: float32 [B, D] in [0, 1), independent.
        least: least flow time: the times t become (1 - least) t + least. That of the
            released pi0 is 0.001.

    Returns:
        float32 [B, D]: draw d lies in the d-th of D equally likely intervals of Beta(1.5, 1), pi0's
        emphasis on noisy times, through the inverse distribution function q(v) = v^(2/3). With D =
        1 this is plain sampling; with more, the D draws of a sample cover all times and the loss's
        variance drops at no cost.
    """
    draws = uniform.shape[1]
    strata = torch.arange(draws, dtype=uniform.dtype, device=uniform.device)
    places = (strata + uniform) / draws
    # Behind the last full vector torch computes powers one by one, with another rounding. A
    # sample's times would then depend on the number of samples drawn with it, and so on the number
    # of processes. Padding fills all vectors.
    padded = F.pad(places.flatten(), (0, -places.numel() % VECTOR))
    times = padded.pow(2.0 / 3.0)[: places.numel()].view_as(places)
    return (1 - least) * times + least if least else times


def euler(field: Callable[[Tensor, Tensor], Tensor], noise: Tensor, steps: int) -> Tensor:
    """Integrate the learned velocity field from noise (t = 1) to actions (t = 0) in equal Euler
    steps.

    Args:
        field: (x [B, T, A], time [B]) -> velocity [B, T, A].
        noise: float32 [B, T, A], the starting point.
        steps: number of evaluations of `field`, at least 1.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: sampling needs at least 1 Euler step")
    x = noise
    for k in range(steps):
        time = torch.full((noise.shape[0],), 1 - k / steps, dtype=noise.dtype, device=noise.device)
        x = x - field(x, time) / steps
    return x


def delays(uniform: Tensor, most: int) -> Tensor:
    """Map uniform draws [B] to numbers of given actions, int64 [B], 0 to `most`."""
    return (uniform * (most + 1)).long().clamp(max=most)


def delays_or_none(uniform: Tensor, most: int) -> Tensor:
    """Map uniform draws [B] to numbers of given actions, int64 [B]: 0 for one half, 1 to `most` for
    the other.
    """
    return torch.where(uniform < 0.5, 0, 1 + ((2 * uniform - 1) * most).long()).clamp(max=most)


def time_features(time: Tensor, width: int) -> Tensor:
    """Compute sines and cosines of flow times, [...] -> float32 [..., width], with log-spaced
    periods.

    In float64: the shortest period makes angles of 1,571 rad, of which float32 keeps 1e-4 rad.
    """
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    angles = time.double()[..., None] * (
        2 * math.pi / (MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** share)
    )
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


Field = Callable[[Tensor, Tensor], Tensor]
"""(x [B, T, dim], time [B] or [B, T]) -> velocity, float32 [B, T, dim]."""

MAX_GUIDANCE = 5.0
"""Largest factor of the guidance, which is infinite at pure noise (the paper's beta)."""


def given_actions(delay: Tensor, length: int) -> Tensor:
    """Mark the leading actions that each sample is given, bool [B, length]; `delay` is int64 [B],
    their number.
    """
    return torch.arange(length, device=delay.device) < delay[:, None]


def check_delay(delay: int, horizon: int | None, count: int, max_delay: int) -> None:
    """Check the arguments of `Policy.continue_chunk`.

    Args:
        delay: actions that the robot executes before the new ones arrive.
        horizon: actions to be guided by; None: the first `delay` are given.
        count: actions in execution.
        max_delay: most given actions in training.

    Raises:
        ValueError: numbers beyond `count`, or a `delay` above `max_delay` without a horizon.
    """
    if not 0 <= delay <= count or (horizon is not None and not delay <= horizon <= count):
        raise ValueError(
            f"delay is {delay}, horizon {horizon}; give 0 <= delay <= horizon <= {count}, the "
            "actions in execution"
        )
    if horizon is None and delay > max_delay:
        raise ValueError(
            f"delay={delay}: the policy was trained with up to {max_delay} given actions "
            "(max_delay); give a horizon, which guides any policy"
        )


def sample_given(field: Field, noise: Tensor, chunk: Tensor, delay: int, steps: int) -> Tensor:
    """Sample actions behind given ones.

    Args:
        field: velocity; it gets one time per action, [B, T].
        noise: float32 [B, T, dim].
        chunk: float32 [B, T, dim], of which the first `delay` actions are given; the others may
            hold anything.
        delay: number of given actions, 0 to T.
        steps: Euler steps.

    Returns:
        float32 [B, T, dim], with the given actions equal to the bit.
    """
    _check(noise, delay, steps)
    # [1, T, 1]
    is_given = given_actions(torch.full((1,), delay, device=noise.device), noise.shape[1])[
        ..., None
    ]
    chunk = torch.where(is_given, chunk, 0.0)
    x = torch.where(is_given, chunk, noise)
    for k in range(steps):
        time = torch.where(is_given[..., 0], 0.0, torch.full_like(noise[..., 0], 1 - k / steps))
        x = torch.where(is_given, chunk, x - field(x, time) / steps)
    return x


def sample_guided(
    field: Field,
    noise: Tensor,
    chunk: Tensor,
    delay: int,
    horizon: int,
    steps: int,
    dims: Tensor | None = None,
) -> Tensor:
    """Sample actions guided towards those of the chunk at hand.

    With tau = 1 - time, the estimate of the chunk is A = x - time v(x). Its error e = w (chunk - A)
    changes v by

        - min(5, (1 - tau) / tau * ((1 - tau)^2 + tau^2) / (1 - tau)^2) (dA / dx)^T e

    Args:
        field: velocity; it must be differentiable, or have a method `guided` in place of
            `guided_velocity`.
        noise: float32 [B, T, dim].
        chunk: float32 [B, T, dim], the chunk at hand from now on; behind `horizon` it may hold
            anything.
        delay: actions with weight 1.
        horizon: actions with a weight, `delay` to T.
        steps: Euler steps.
        dims: bool, broadcastable to [B, T, dim], the robot's own dimensions, which alone are
            guided; None: all. The loss trains no others, so the estimate there is arbitrary, and
            its error would change the robot's own through the Jacobian.
    """
    _check(noise, delay, steps)
    # [1, T, 1]
    weights = guidance_weights(noise.shape[1], delay, horizon).to(noise.device)[None, :, None]
    if dims is not None:
        weights = weights * dims
    chunk = torch.where(weights > 0, chunk, 0.0)
    guided = getattr(field, "guided", None) or partial(guided_velocity, field)
    x = noise
    for k in range(steps):
        tau = k / steps
        factor = MAX_GUIDANCE
        if tau > 0:
            factor = min(factor, (1 - tau) / tau * ((1 - tau) ** 2 + tau**2) / (1 - tau) ** 2)
        moved = guided(x=x, time=1 - tau, chunk=chunk, weights=weights, factor=factor, dims=dims)
        x = x - moved / steps
    return x


def guided_velocity(
    field: Field,
    x: Tensor,
    time: float | Tensor,
    chunk: Tensor,
    weights: Tensor,
    factor: float | Tensor,
    dims: Tensor | None = None,
) -> Tensor:
    """Compute the velocity at x [B, T, dim] with guidance; see `sample_guided`. A `time` and a
    `factor` of tensors are float32 [].
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        velocity = field(x, torch.zeros_like(x[:, 0, 0]) + time)
        estimate = x - time * velocity
        error = (weights * (chunk - estimate)).detach()
        (pull,) = torch.autograd.grad(estimate, x, error)
    if dims is not None:
        pull = torch.where(dims, pull, 0.0)
    return velocity.detach() - factor * pull


def guidance_weights(length: int, delay: int, horizon: int) -> Tensor:
    """Compute the weight of each action, float32 [length]: 1 up to `delay`, falling to 0 at
    `horizon`.

    With w = (horizon - i) / (horizon - delay + 1) it is w (e^w - 1) / (e - 1), as in the paper.

    Args:
        length: T.
        delay: actions with weight 1.
        horizon: first action with weight 0.

    Raises:
        ValueError: `horizon` is not from `delay` to `length`.
    """
    if not 0 <= delay <= horizon <= length:
        raise ValueError(
            f"delay={delay}, horizon={horizon}: must be 0 <= delay <= horizon <= {length}, the "
            "chunk"
        )
    place = torch.arange(length, dtype=torch.float64)
    ramp = ((horizon - place) / (horizon - delay + 1)).clamp(0, 1)
    ramp = ramp * torch.expm1(ramp) / (math.e - 1)
    return torch.where(place < delay, 1.0, ramp).float()


def _check(noise: Tensor, delay: int, steps: int) -> None:
    if not 0 <= delay <= noise.shape[1]:
        raise ValueError(
            f"delay={delay}: must be from 0 to {noise.shape[1]}, the actions of a chunk"
        )
    if steps < 1:
        raise ValueError(f"steps={steps}: sampling needs at least 1 Euler step")
