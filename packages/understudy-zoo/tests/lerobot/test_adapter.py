"""Padded actions of the adapters. Needs no LeRobot."""

import torch

from understudy_zoo.lerobot.adapter import repeated

NAN = float("nan")


def test_padded_slots_repeat_the_last_one_before_them() -> None:
    values = torch.tensor([[NAN, 1, NAN, 2, NAN], [3, 4, 5, 6, 7], [NAN] * 5])[..., None]
    is_pad = values.isnan()[..., 0]
    wanted = torch.tensor([[1.0, 1, 1, 2, 2], [3, 4, 5, 6, 7], [0] * 5])[..., None]
    assert torch.equal(repeated(values, is_pad), wanted)
    pixels = torch.arange(3, dtype=torch.uint8).view(1, 3, 1, 1, 1)
    first = repeated(pixels, torch.tensor([[True, True, False]]))
    assert (first.dtype, first.flatten().tolist()) == (torch.uint8, [2, 2, 2])
