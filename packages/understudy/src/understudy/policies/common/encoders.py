"""Encoders of the small policies.

Texts: instructions as UTF-8 bytes: any language, no vocabulary file, nothing to download.

They distinguish a few hundred instructions. A wording that is absent from training carries no
meaning.

Images: a small convolutional network, conditioned on the instruction, that returns keypoints.

The instruction modulates every convolution block (FiLM, Perez et al. 2018, "Visual Reasoning with a
General Conditioning Layer"). Keypoints are the expected place of each channel (spatial softmax,
Levine et al. 2016, "End-to-End Training of Deep Visuomotor Policies"). The output is only a few
dozen coordinates: enough to learn positions, and too little to memorise training episodes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import to_device
from understudy.policies.common.layers import Conv1d, Conv2d, Linear, group_norm, layer_norm

# deviation of a fresh phase in radians: from 4 on, sentences that differ in a word are unrelated
FREQUENCY = 4.0
# after the 256 byte values; START makes the empty text a text of one token
START = 256
PAD = 257


def byte_tokens(texts: Sequence[str], length: int) -> Tensor:
    """Encode texts as UTF-8 bytes behind a START token, cut or padded to `length`: int64
    [len(texts), length].
    """
    tokens = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids = [START, *text.encode("utf-8")[: length - 1]]
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens


def text_room(texts: Sequence[str], length: int) -> tuple[int, int, str]:
    """Return the tokens of the longest text before it is cut, `length`, and the setting of that."""
    return 1 + max((len(text.encode("utf-8")) for text in texts), default=0), length, "text_bytes"


class TextEncoder(nn.Module):
    """Byte tokens -> one vector per text.

    Convolutions over the bytes detect words, then the maximum over places (Kim 2014, "Convolutional
    Neural Networks for Sentence Classification"). The sine of a random projection separates the
    sentences (random Fourier features, Rahimi & Recht 2007).

    The separation matters. Sentences of a dataset often differ in one word, and a mean over their
    tokens differs by a tenth: a policy then memorises the training scenes before it uses the words.
    Here two different sentences start nearly orthogonal.

    Texts repeat within a batch (a dataset has few tasks), so each distinct one is encoded once.
    """

    def __init__(self, length: int, width: int, out: int) -> None:
        """Build the encoder of `length` bytes, embedded in `width` numbers, to vectors of `out`
        numbers.
        """
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(PAD + 1, width)
        self.near = Conv1d(width, out, 5, padding=2)  # letters within a word
        self.far = Conv1d(out, out, 5, padding=8, dilation=4)  # a word and its neighbours
        self.out = Linear(out, out)
        nn.init.normal_(self.out.weight, std=FREQUENCY * out**-0.5)

    def forward(self, texts: Sequence[str] | Tensor, dtype: torch.dtype) -> Tensor:
        """Encode B strings, or their `byte_tokens` [B, L], as [B, out] in -1..1, in `dtype`."""
        device = self.embed.weight.device
        if isinstance(texts, Tensor):
            return self._encode(texts.to(device), dtype)
        distinct = sorted(set(texts))
        where = {text: row for row, text in enumerate(distinct)}
        encoded = self._encode(to_device(byte_tokens(distinct, self.length), device), dtype)
        return encoded[to_device(torch.tensor([where[text] for text in texts]), device)]

    def _encode(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Encode tokens [U, L] as [U, out]."""
        valid = (tokens != PAD)[:, None]  # [U, 1, L]
        x = torch.where(valid, self.embed(tokens).transpose(1, 2), 0).to(dtype)  # [U, W, L]
        x = torch.where(valid, F.relu(self.near(x)), 0)  # [U, out, L]
        x = torch.where(valid, x + F.relu(self.far(x)), 0)
        # [U, out], float32: a phase in radians bears no rounding
        phase = self.out(layer_norm(x.amax(dim=2).float()))
        return torch.sin(phase).to(dtype)


SHARPNESS = 3.0
"""Deviation of a fresh keypoint's logits; at 1 every keypoint would start near the middle of the
image.
"""


def as_network_input(images: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Convert uint8 [B, 3, H, W] to [B, 3, *size] in -1..1, area-averaged where the size
    differs; floats are converted already.
    """
    if images.is_floating_point():
        return images.to(dtype)
    x = images.float() / 127.5 - 1
    if x.shape[-2:] != size:
        x = F.interpolate(x, size=size, mode="area")
    return x.to(dtype)


def keypoints(maps: Tensor) -> Tensor:
    """Compute the spatial softmax in float32: [B, K, h, w] logits -> [B, 2 K], the mean (y, x) of
    each in -1..1.
    """
    _, _, height, width = maps.shape
    weight = maps.float().flatten(2).softmax(dim=-1).view(maps.shape)  # [B, K, h, w]
    y = torch.linspace(-1, 1, height, device=maps.device)
    x = torch.linspace(-1, 1, width, device=maps.device)
    along_y = (weight.sum(dim=3) * y).sum(dim=2)  # [B, K]
    along_x = (weight.sum(dim=2) * x).sum(dim=2)  # [B, K]
    return torch.cat([along_y, along_x], dim=1)


class FilmBlock(nn.Module):
    """x + relu(film(norm(conv(x)))): a 3 x 3 residual block whose channels the condition scales and
    shifts.

    The modulation starts at full strength (scale and shift of deviation 1 for a condition of
    deviation 1), so that the instruction changes the features from the first step on. With the
    small default initialisation, training spends a third of its steps on memorising scenes of a
    small dataset without words.
    """

    def __init__(self, channels: int, condition: int) -> None:
        """Build the block for maps of `channels` and conditions of `condition` numbers."""
        super().__init__()
        self.conv = Conv2d(channels, channels, 3, padding=1)
        self.film = Linear(condition, 2 * channels)
        nn.init.normal_(self.film.weight, std=condition**-0.5)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map x [B, C, h, w] and condition [B, condition] to [B, C, h, w]."""
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, dim=1)  # each [B, C, 1, 1]
        return x + F.relu(group_norm(self.conv(x), 8) * (1 + scale) + shift)


class ImageEncoder(nn.Module):
    """One network for all cameras; a learned vector per camera is added to the condition.

    The instruction generates the filters of the keypoints: half of them act on the network's maps,
    half on the plain colors at twice the resolution. So different words attend to different things
    from the first step on. Without that a policy explains the demonstrations by the path of the
    hand in each scene, and on a few hundred episodes it may never learn the words. The finer map is
    for precision: a hand must come within a pixel or two of its target.
    """

    def __init__(
        self,
        cameras: int,
        size: tuple[int, int],
        channels: int,
        blocks: int,
        points: int,
        condition: int,
    ) -> None:
        """Build the encoder; for the arguments see `FlowSettings`, `condition` is the width of the
        instruction.
        """
        super().__init__()
        self.size = size
        self.camera = nn.Parameter(torch.randn(cameras, condition) * 0.5)
        self.stem = Conv2d(3, channels, 6, stride=4, padding=1)
        self.blocks = nn.ModuleList(FilmBlock(channels, condition) for _ in range(blocks))
        self.filters = _filters(condition, points // 2, channels)
        self.colours = _filters(condition, points // 2, 3)  # a name in checkpoints: it stays

    def forward(
        self, images: list[Tensor], condition: Tensor, missing: list[Tensor | None] | None = None
    ) -> Tensor:
        """Compute the keypoints, float32 [B, cameras * 2 * points].

        Args:
            images: uint8 [B, 3, H, W] per camera, or `as_network_input` of them.
            condition: [B, condition].
            missing: bool [B] per camera, True where a sample has no such camera: its keypoints are
                0 for any content of the image. None: all samples have the camera (or all cameras).
        """
        # All cameras in one call: a sharded block that is used twice in a step sums its two
        # gradients in another order than a whole one.
        text_emb = torch.cat(
            [layer_norm(condition + camera.to(condition.dtype)) for camera in self.camera]
        )  # [K B, ...]
        rgb = torch.cat([as_network_input(image, self.size, condition.dtype) for image in images])
        x = F.relu(self.stem(rgb))  # [K B, C, h, w], h = H / 4
        for block in self.blocks:
            x = block(x, text_emb)
        color = group_norm(F.avg_pool2d(rgb, 2), 3)  # [K B, 3, 2 h, 2 w], each channel by itself
        # [K B, 2 points]: points / 2 times y, x of the network's maps, then of the plain colors
        points = torch.cat(
            [
                keypoints(_apply(self.filters(text_emb), group_norm(x, 8))),
                keypoints(_apply(self.colours(text_emb), color)),
            ],
            dim=1,
        )
        # not chunk: it fixes B when traced
        seen = list(points.unflatten(0, (len(images), -1)).unbind())
        for number, lacks in enumerate(missing or ()):
            if lacks is not None:
                seen[number] = torch.where(lacks[:, None], 0.0, seen[number])
        return torch.cat(seen, dim=1)


def _filters(condition: int, points: int, channels: int) -> Linear:
    """Make the layer from condition [B, condition] to one filter per keypoint, [B, points *
    channels].
    """
    filters = Linear(condition, points * channels)
    nn.init.normal_(filters.weight, std=SHARPNESS * (condition * channels) ** -0.5)
    return filters


def _apply(filters: Tensor, maps: Tensor) -> Tensor:
    """Apply each sample's own filters [B, K * C] to its maps [B, C, h, w]: [B, K, h, w]."""
    batch, channels, height, width = maps.shape
    return (filters.view(batch, -1, channels) @ maps.flatten(2)).view(batch, -1, height, width)
