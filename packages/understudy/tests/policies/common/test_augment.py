"""Augmentations are functions of their draws: same draws same result, sample by sample."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.policies.common.images import drop_texts, shift_images
from understudy_base.testing.refusals import refused


def _pictures(count: int, height: int = 7, width: int = 9) -> torch.Tensor:
    return torch.randint(
        0,
        256,
        (count, 3, height, width),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


def test_the_middle_draw_moves_nothing() -> None:
    pictures = _pictures(3)
    assert torch.equal(shift_images(pictures, torch.full((3, 2), 0.5), reach=2), pictures)
    assert torch.equal(shift_images(pictures, torch.rand(3, 2), reach=0), pictures)


@given(
    st.integers(1, 3),
    st.floats(0, 1, exclude_max=True, width=32),
    st.floats(0, 1, exclude_max=True, width=32),
)
def test_a_shift_is_a_crop_of_the_picture_with_its_edges_repeated(
    reach: int, down: float, right: float
) -> None:
    pictures = _pictures(1)
    padded = torch.nn.functional.pad(pictures.float(), (reach,) * 4, mode="replicate").to(
        torch.uint8
    )
    y = int(down * (2 * reach + 1))
    x = int(right * (2 * reach + 1))
    expected = padded[:, :, y : y + 7, x : x + 9]
    assert torch.equal(shift_images(pictures, torch.tensor([[down, right]]), reach), expected)


def test_every_move_is_equally_likely_and_reaches_both_ends() -> None:
    line = torch.arange(11, dtype=torch.uint8).view(1, 1, 1, 11).expand(5000, 1, 1, 11)
    moves = shift_images(line, torch.rand(5000, 2, generator=torch.Generator().manual_seed(0)), 2)[
        :, 0, 0, 5
    ]
    assert torch.bincount(moves.long() - 3).tolist() == pytest.approx([1000] * 5, rel=0.12)


def test_each_picture_is_moved_by_its_own_draw_in_any_batch() -> None:
    pictures = _pictures(5)
    draws = torch.rand(5, 2, generator=torch.Generator().manual_seed(1))
    whole = shift_images(pictures, draws, reach=2)
    parts = [shift_images(pictures[b : b + 1], draws[b : b + 1], reach=2) for b in range(5)]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, pictures)
    assert whole.dtype == torch.uint8


def test_a_draw_per_picture_or_an_error() -> None:
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        shift_images(_pictures(2), torch.rand(3, 2), 1)
    with pytest.raises(ValueError, match="reach=-1"):
        shift_images(_pictures(2), torch.rand(2, 2), -1)


def test_texts_are_dropped_by_their_draw() -> None:
    assert drop_texts(["a", "b", "c"], torch.tensor([0.1, 0.3, 0.29]), share=0.3) == ["", "b", ""]
    assert drop_texts(["a"], torch.tensor([0.0]), share=0.0) == ["a"]
    with refused(2, 1, kind=ValueError):
        drop_texts(["a", "b"], torch.zeros(1), share=0.5)
