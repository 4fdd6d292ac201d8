"""Flow matching on action chunks: the path, its velocity, the times, and the Euler integration.

Convention (that of the published pi0 code, so that times can be compared number by number): `time` 1 is pure noise
and `time` 0 is the action chunk,

    x_t = t * noise + (1 - t) * actions,        velocity  u = d x_t / d t = noise - actions,

and sampling walks from t = 1 down to t = 0. (The paper writes tau = 1 - t.) Sources: Lipman et al. 2023, "Flow
Matching for Generative Modeling", section 4.1 (optimal-transport path); Black et al. 2024, "pi0: A Vision-Language-
Action Flow Model for General Robot Control", section IV.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

VECTOR = 64
"""Numbers: at least the vector width of any CPU (AVX-512: twice 16 of float32)."""
MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0
"""Periods of `time_features`, as in pi0."""


def noisy_actions(actions: Tensor, noise: Tensor, time: Tensor) -> Tensor:
    """Compute x_t on the straight path. actions, noise [..., T, A] float32, time [...] in [0, 1] -> [..., T, A]."""
    t = time[..., None, None]
    return t * noise + (1 - t) * actions


def velocity(actions: Tensor, noise: Tensor) -> Tensor:
    """Compute the velocity of the path, the target of the network; equal at every time. [..., T, A]."""
    return noise - actions


def shift_times(time: Tensor, factor: float) -> Tensor:
    """Shift flow times in [0, 1] towards noise for factors above 1; 0 and 1 stay.

    Esser et al. 2024, "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", equation 23.
    """
    return factor * time / (1 + (factor - 1) * time)


def spread_times(uniform: Tensor) -> Tensor:
    """Map uniform draws to flow times, one stratum per draw of a sample.

    Args:
        uniform: float32 [B, D] in [0, 1), independent.

    Returns:
        float32 [B, D]: draw d lies in the d-th of D equally likely intervals of Beta(1.5, 1), pi0's emphasis on noisy
        times, through the inverse distribution function q(v) = v^(2/3). With D = 1 this is plain sampling; with more,
        the D draws of a sample cover all times and the loss's variance drops at no cost.
    """
    draws = uniform.shape[1]
    strata = torch.arange(draws, dtype=uniform.dtype, device=uniform.device)
    places = (strata + uniform) / draws
    # Behind the last full vector torch computes powers one by one, with another rounding. A sample's times would then
    # depend on the number of samples drawn with it, and so on the number of processes. Padding fills all vectors.
    padded = F.pad(places.flatten(), (0, -places.numel() % VECTOR))
    return padded.pow(2.0 / 3.0)[: places.numel()].view_as(places)


def euler(field: Callable[[Tensor, Tensor], Tensor], noise: Tensor, steps: int) -> Tensor:
    """Integrate the learned velocity field from noise (t = 1) to actions (t = 0) in equal Euler steps.

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


def released_times(uniform: Tensor) -> Tensor:
    """Map uniform draws [B, D] to the flow times of the released training, 0.999 Beta(1.5, 1) + 0.001, stratified."""
    return 0.999 * spread_times(uniform) + 0.001


def delays(uniform: Tensor, most: int) -> Tensor:
    """Map uniform draws [B] to numbers of given actions, int64 [B], 0 to `most`."""
    return (uniform * (most + 1)).long().clamp(max=most)


def delays_or_none(uniform: Tensor, most: int) -> Tensor:
    """Map uniform draws [B] to numbers of given actions, int64 [B]: 0 for one half, 1 to `most` for the other."""
    return torch.where(uniform < 0.5, 0, 1 + ((2 * uniform - 1) * most).long()).clamp(max=most)


def time_features(time: Tensor, width: int) -> Tensor:
    """Compute sines and cosines of flow times, [...] -> float32 [..., width], with log-spaced periods.

    In float64: the shortest period makes angles of 1,571 rad, of which float32 keeps 1e-4 rad.
    """
    share = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    angles = time.double()[..., None] * (2 * math.pi / (MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** share))
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()
