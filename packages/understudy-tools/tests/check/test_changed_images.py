"""Mirrored, noisy and color-exchanged episodes among sound ones, and scenes that vary without being
so.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from understudy_tools.check.image_facts import Clip, ImageFacts, noise_level, shrink
from understudy_tools.check.rules.image_detail import check_changed_images

CAMERA = "observation.images.top"
COUNT = 10


def scene(episode: int, symmetric: bool = False) -> np.ndarray:
    """uint8 (3, 3, 96, 128): a table on a wall, a lamp on the left, and objects of the episode."""
    rng = np.random.default_rng(episode)
    y, x = np.mgrid[0:96, 0:128]
    image = np.stack([150 + y // 2, 120 + 0 * y, 60 + y // 3]).astype(np.int64)
    if not symmetric:
        image[:, 10:60, 5:45] += 60
        image[0] += x // 3
    for _ in range(4):
        top = rng.integers(30, 80)
        left = rng.integers(0, 110)
        image[:, top : top + 12, left : left + 12] = rng.integers(0, 255, (3, 1, 1))
    return np.clip(np.repeat(image[None], 3, axis=0) + rng.integers(-4, 5), 0, 255).astype(np.uint8)


def found(images: list[np.ndarray]) -> list[tuple[str, tuple[int, ...]]]:
    empty = np.zeros((0, 24, 32, 3), np.float32)
    clips = [
        Clip(CAMERA, row, shrink(own), 0, empty, np.zeros(0), 1, noise_level(own))
        for row, own in enumerate(images)
    ]
    catalog: Any = SimpleNamespace(episodes=SimpleNamespace(ids=np.arange(len(images)) + 100))
    findings = check_changed_images(catalog, ImageFacts({CAMERA: clips}))
    findings = [finding for finding in findings if finding.severity != "undecided"]
    assert all(finding.place.camera == CAMERA and finding.fix for finding in findings)
    return [(finding.rule, finding.place.episodes) for finding in findings]


def with_noise(images: np.ndarray, sigma: float) -> np.ndarray:
    noise = np.random.default_rng(1).normal(0, sigma, images.shape)
    return np.clip(images + noise, 0, 255).astype(np.uint8)


def test_sound_scenes_raise_no_alarm() -> None:
    sound = [scene(episode) for episode in range(COUNT)]
    assert found(sound) == []
    # a noisy camera in all episodes
    assert found([with_noise(images, 12) for images in sound]) == []
    darker = [images if episode % 4 else images // 2 for episode, images in enumerate(sound)]
    assert found(darker) == []
    assert found([*sound[:-1], 255 - sound[-1]]) == []  # another fault
    symmetric = [scene(episode, symmetric=True) for episode in range(COUNT)]
    symmetric[3] = symmetric[3][:, :, :, ::-1]
    assert found(symmetric) == []  # no pixel differs
    half = [
        images[:, :, :, ::-1] if episode % 2 else images for episode, images in enumerate(sound)
    ]
    assert found(half) == []  # two cameras or two setups
    assert found(sound[:4]) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda images: images[:, :, :, ::-1], "images.mirrored"),
        (lambda images: images[:, :, ::-1], "images.mirrored"),
        (lambda images: images[:, :, ::-1, ::-1], "images.mirrored"),
        (lambda images: images[:, ::-1], "images.channels"),
        (lambda images: with_noise(images, 15), "images.noise"),
    ],
    ids=["left to right", "upside down", "rotated", "colors", "noise"],
)
def test_a_changed_episode_is_named(change: Any, rule: str) -> None:
    images = [scene(episode) for episode in range(COUNT)]
    images[6] = change(images[6])
    assert found(images) == [(rule, (106,))]


@pytest.mark.parametrize("sigma", [2.0, 10.0, 30.0])
def test_noise_level_estimates_the_deviation(sigma: float) -> None:
    flat = np.full((2, 1, 200, 300), 128.0) + np.arange(300) / 6
    assert noise_level(
        flat + np.random.default_rng(0).normal(0, sigma, flat.shape)
    ) == pytest.approx(sigma, rel=0.05)
    assert noise_level(np.zeros((1, 3, 2, 9), np.uint8)) == 0
