"""Figures of imagined images, and the optional capability behind them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import make_draws
from understudy.testing.policies import batch, policy
from understudy.train.validation.imagined import Futures, moved, psnr


def test_psnr_is_over_the_pixels_of_the_mask() -> None:
    real = torch.full((2, 3, 4, 4), 100, dtype=torch.uint8)
    predicted = real.clone()
    predicted[0, :, 0, 0] = 151  # one pixel of 32, by a fifth of the range
    assert psnr(predicted, real) == pytest.approx(10 * math.log10(32 * 25))
    mask = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    assert psnr(predicted, real, mask) is None
    mask[0, 0, 0, 0] = True
    assert psnr(predicted, real, mask) == pytest.approx(10 * math.log10(25))
    assert psnr(real, real) == pytest.approx(100)


def test_a_pixel_moved_if_one_of_its_colors_changed() -> None:
    now = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    then = now.clone()
    then[0, 2, 1, 0], then[0, :, 0, 1] = 25, 24
    assert moved(now, then).tolist() == [[[[False, False], [True, False]]]]
    assert torch.equal(moved(then, now), moved(now, then))


def test_images_that_cannot_be_written_do_not_end_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    futures = Futures({}, [np.zeros((3, 4, 4, 3), np.uint8)], ["pick"], (1,))
    futures.write(tmp_path / "strips.png")
    assert (tmp_path / "strips.png").stat().st_size
    assert not caplog.records
    futures.write(tmp_path / "no folder" / "strips.png")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(tmp_path / "no folder") in record.getMessage()


def test_a_flow_policy_imagines_states_after_given_actions() -> None:
    model = policy(future=True)
    given = batch(2)
    draws = make_draws(model.random_spec("act"), 3, torch.arange(2))
    found = model.imagine(given, draws, 3)
    assert found.images is None
    # the other never moves
    torch.testing.assert_close(found.actions[0, :, (0, 2)], given["action"][0, :, (0, 2)])
    own = model.imagine(given, draws, 3, TaskMode.POLICY)
    assert torch.equal(own.actions, model.act(given, draws, 3))


@pytest.mark.parametrize("future", [True, False])
def test_a_policy_says_whether_it_imagines(future: bool) -> None:
    model: Any = policy(future=future)
    assert model.imagines == future
    if not future:
        with pytest.raises(ValueError, match=TaskMode.FORWARD):
            model.imagine(batch(1), make_draws(model.random_spec("act"), 3, torch.arange(1)))
