"""Parts that the adapters of LeRobot's policies share: normalized images, and draws in the
network.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from understudy import Normalizer, Policy
from understudy_base import ACTION, Batch, ConfigError, Record
from understudy_zoo.lerobot.folder import read_folder
from understudy_zoo.lerobot.settings import ColorSettings, LerobotConfig

_EPS = 1e-8  # LeRobot adds it to deviations


class LerobotPolicy(Policy):
    """Base class of the adapters: normalization, random numbers and per-sample losses are ours, the
    network theirs.
    """

    config: Any
    read_folder = staticmethod(read_folder)
    image_mean: Tensor
    image_std: Tensor

    def __init__(self, config: LerobotConfig, normalization: Record) -> None:
        """Read the normalization, that of the colors included.

        Args:
            config: facts and settings.
            normalization: see `policies/common/normalizer.py`.

        Raises:
            MissingExtraError: a package that LeRobot's network needs is not installed.
            ValueError: the normalization does not fit the config. ConfigError: LeRobot refuses the
                config.
        """
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(normalization, config.widths)
        if isinstance(config, ColorSettings):
            for name, color in _colors(config).items():
                self.register_buffer(name, torch.tensor(color).view(3, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Set the mode. The network keeps that of evaluation, unless `losses` changes it."""
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def filled(self, batch: Batch, key: str) -> Tensor:
        """Return the values of a key, [B, T, ...]. Where the batch has a mask of them, no content
        of a padded slot reaches the network: it is that of another slot (`repeated`), as in
        LeRobot's batches.
        """
        values: Tensor = self.value_of(batch, key)
        is_pad = batch.get(f"{key}_is_pad")
        return values if is_pad is None else repeated(values, is_pad)

    def actions(self, batch: Batch) -> Tensor:
        """Return normalized actions, float32 [B, T, A], `filled`."""
        return self.normalizer.actions({**batch, ACTION: self.filled(batch, ACTION)})

    def pixels(self, batch: Batch, camera: str) -> Tensor:
        """Return images of the batch in 0..1, float32 [B, 3, H, W], or [B, n, 3, H, W] of n
        times.
        """
        past = self.config.past_steps
        image: Tensor = self.filled(batch, camera) if past else self.value_of(batch, camera)
        times = [past + 1] if past else []
        self.check_image(camera, image, (None, *times, 3, None, None))
        return image.float() / 255

    def normal_images(self, batch: Batch, camera: str) -> Tensor:
        """Return images of the size `image_size` with normalized colors, float32."""
        pixels = self.pixels(batch, camera)
        if tuple(pixels.shape[-2:]) != tuple(self.config.image_size):
            small = F.interpolate(pixels.flatten(0, -4), size=self.config.image_size, mode="area")
            pixels = small.view(*pixels.shape[:-2], *self.config.image_size)
        return (pixels - self.image_mean) / (self.image_std + _EPS)


def repeated(values: Tensor, is_pad: Tensor) -> Tensor:
    """Return values [B, T, ...] whose padded slots, bool [B, T], repeat the last slot before them
    that is not padded, else the first one; 0 in samples of padding alone.
    """
    slots = torch.arange(is_pad.shape[1], device=is_pad.device).expand_as(is_pad)
    last = torch.where(is_pad, -1, slots).cummax(dim=1).values
    first = (~is_pad).int().argmax(dim=1, keepdim=True)
    source = torch.where(last < 0, first, last)
    samples = torch.arange(len(values), device=values.device)[:, None]
    none = is_pad.all(dim=1).view(-1, *[1] * (values.ndim - 1))
    return torch.where(none, 0, values[samples, source])


def _colors(config: ColorSettings) -> dict[str, tuple[float, ...]]:
    return {"image_mean": config.image_mean, "image_std": config.image_std}


@contextmanager
def build_errors() -> Iterator[None]:
    """Turn errors of LeRobot's networks about their config into ConfigError."""
    try:
        yield
    except (AssertionError, ZeroDivisionError) as error:
        raise ConfigError(f"policy.config: LeRobot cannot build the network: {error}") from error


class GivenNoise(TorchFunctionMode):
    """While it is active, the calls of `torch.randn_like` and `torch.randn` return given numbers,
    one after the other.

    Further calls raise RuntimeError: the network then draws other numbers than the adapter knows.
    """

    def __init__(self, *noises: Tensor) -> None:
        """Take the numbers of each call."""
        super().__init__()
        self._noises = list(noises)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, or return the numbers."""
        named = kwargs or {}
        if func not in (torch.randn_like, torch.randn):
            return func(*args, **named)
        like = func is torch.randn_like
        first = args[0] if args else named["size"]
        if like:
            shape = tuple(first.shape)
        elif isinstance(first, Iterable):
            shape = tuple(first)
        else:
            shape = tuple(args)
        noise = self._noises.pop(0) if self._noises else None
        if noise is None or tuple(noise.shape) != shape:
            raise RuntimeError(
                f"the network draws {shape} normal numbers, which this release of LeRobot should "
                "not"
            )
        return noise.to(first) if like else noise
