"""How inputs become numbers: normalization and its inverse, bytes of text, keypoints of images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.policies.common.encoders import (
    PAD,
    START,
    ImageEncoder,
    TextEncoder,
    byte_tokens,
    keypoints,
)
from understudy.policies.common.normalizer import Affine

FINITE = st.floats(-1e4, 1e4, width=32)


@given(
    st.lists(st.tuples(FINITE, st.floats(2**-10, 1e4, width=32), FINITE), min_size=1, max_size=4)
)
def test_unnormalize_undoes_normalize(dims: list[tuple[float, float, float]]) -> None:
    offset, spread, x = (torch.tensor(column) for column in zip(*dims))
    affine = Affine(offset, spread)
    back = affine.unnormalize(affine.normalize(x))
    # Each of the four operations rounds once, relative to the larger of x and the offset; or
    # underflows.
    assert ((back - x).abs() <= 4 * 2**-23 * torch.maximum(x.abs(), offset.abs()) + 1e-38).all()


def test_a_constant_dimension_is_zero_and_comes_back_exactly() -> None:
    affine = Affine([0.1, 3.0], [0.0, 2.0])
    assert affine.normalize(torch.tensor([[0.1, 5.0], [123.0, 3.0]])).tolist() == [
        [0.0, 1.0],
        [0.0, 0.0],
    ]
    assert torch.equal(affine.unnormalize(torch.randn(5, 2))[:, 0], torch.full((5,), 0.1))


def test_normalization_is_float32_whatever_comes_in() -> None:
    affine = Affine([100.0], [0.001])
    x = torch.tensor([100.0005], dtype=torch.float64)
    assert affine.normalize(x).dtype == torch.float32
    affine.to(torch.float32)
    assert affine.normalize(torch.tensor([100], dtype=torch.bfloat16)).dtype == torch.float32


def test_bytes_of_any_language_cut_and_padded() -> None:
    tokens = byte_tokens(["ab", "", "grün"], 5)
    assert tokens.tolist() == [
        [START, 97, 98, PAD, PAD],
        [START, PAD, PAD, PAD, PAD],
        [START, 103, 114, 195, 188],  # a cut may fall inside a character: these are bytes
    ]


def test_a_text_is_encoded_the_same_in_any_company() -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(length=12, width=16, out=8)
    together = encoder(["red", "", "blue", "red"], torch.float32)
    assert torch.equal(together[0], together[3])
    torch.testing.assert_close(encoder(["blue"], torch.float32)[0], together[2])
    assert torch.isfinite(together).all()
    assert not torch.allclose(together[0], together[2])


def test_sentences_that_differ_in_a_word_start_out_unrelated() -> None:
    """A prototype memorised because of this: three instructions with nearly parallel vectors, heard
    too late.
    """
    texts = [f"pick up the {color} block" for color in ("red", "green", "blue")]
    for seed in range(5):
        torch.manual_seed(seed)
        vectors = TextEncoder(length=96, width=64, out=192)(texts, torch.float32)
        cosines = torch.corrcoef(vectors)[~torch.eye(3, dtype=torch.bool)]
        assert cosines.abs().max() < 0.6


def test_a_fresh_eye_looks_at_other_places_for_other_words() -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder(1, (64, 64), channels=24, blocks=3, points=32, condition=192)
    picture = torch.full((1, 3, 64, 64), 200, dtype=torch.uint8)
    for block, row in enumerate((8, 28, 48)):  # a red, a green, a blue block
        picture[:, :, row : row + 8, 8 + 20 * block : 16 + 20 * block] = 0
        picture[:, block, row : row + 8, 8 + 20 * block : 16 + 20 * block] = 220
    told = torch.sin(4 * torch.randn(3, 192))
    places = encoder([picture.expand(3, -1, -1, -1)], told)
    assert places.var(dim=0).mean().sqrt() > 0.1  # in units of half an image


def test_the_order_of_the_letters_matters() -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(length=12, width=16, out=8)
    ab, ba = encoder(["ab", "ba"], torch.float32)
    assert not torch.allclose(ab, ba, atol=1e-3)


def test_a_color_is_found_to_the_pixel() -> None:
    """A filter that asks for red puts its keypoint on the middle of a red block, wherever that
    is.
    """
    torch.manual_seed(0)
    encoder = ImageEncoder(1, (64, 64), channels=8, blocks=1, points=2, condition=6)
    torch.nn.init.zeros_(encoder.colours.weight)
    encoder.colours.bias.data = torch.tensor([3.0, -3.0, -3.0])
    for top, left in ((5, 40), (6, 41), (30, 9)):
        picture = (
            torch.tensor([220, 210, 180], dtype=torch.uint8).view(1, 3, 1, 1).repeat(1, 1, 64, 64)
        )
        picture[:, :, 50:56, 50:56] = torch.tensor([30, 60, 230], dtype=torch.uint8).view(
            1, 3, 1, 1
        )
        picture[:, :, top : top + 6, left : left + 6] = torch.tensor(
            [220, 30, 30], dtype=torch.uint8
        ).view(1, 3, 1, 1)
        y, x = encoder([picture], torch.zeros(1, 6))[0, 2:].tolist()
        # the map's cells are 2 pixels wide, centres at 1..63
        middle = ((y + 1) / 2 * 62 + 1, (x + 1) / 2 * 62 + 1)
        assert middle == pytest.approx((top + 3, left + 3), abs=1)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (2, 4), (1, 3)])
def test_a_keypoint_is_where_its_map_peaks(row: int, column: int) -> None:
    maps = torch.zeros(1, 2, 3, 5)
    maps[0, 1, row, column] = 50
    y0, y1, x0, x1 = keypoints(maps)[0].tolist()
    assert (y0, x0) == pytest.approx((0, 0), abs=1e-6)  # a flat map points to the middle
    assert (y1, x1) == pytest.approx((row - 1, (column - 2) / 2), abs=1e-6)
