"""Rules of images by their facts: delays, reversed and foreign videos, rates, torn images, blur,
color, poses.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from understudy_tools.check.findings import Finding
from understudy_tools.check.image_facts import GRAY, Clip, ImageFacts, sharpness
from understudy_tools.check.rules.camera_poses import best_pose, check_camera_poses, fine
from understudy_tools.check.rules.image_detail import (
    check_changed_images,
    check_image_detail,
    held,
    torn,
)
from understudy_tools.check.rules.images import check_images
from understudy_tools.check.rules.motion import check_motion

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
COUNT = 10
FRAMES = 220


def speed(episode: int) -> np.ndarray:
    """float64 (FRAMES,): pauses and strokes of random lengths, smooth over a few frames."""
    rng = np.random.default_rng([2, episode])
    parts = []
    while sum(parts) < FRAMES:
        parts.append(int(rng.integers(6, 22)))
    steps = np.concatenate([np.full(length, rng.uniform(0.02, 1.0)) for length in parts])[:FRAMES]
    return np.convolve(np.pad(steps, 2, mode="edge"), np.ones(5) / 5, "valid")


def window(motion: np.ndarray, episode: int, camera: int = 0) -> np.ndarray:
    """float32 (FRAMES, 24, 32, 3): a wave that moves by `motion` over a scene of the camera."""
    scene = np.random.default_rng([4, camera]).uniform(70, 160, (24, 32, 3)) + 20 * np.array(
        [2, 1, -1]
    )
    x = np.arange(32) / 3 + np.cumsum(motion)[:, None] + episode
    wave = 12 * np.sin(x)[:, None, :, None]
    rng = np.random.default_rng([6, episode, camera])
    return (scene + wave + rng.normal(0, 0.2, (len(motion), 24, 32, 3))).astype(np.float32)


def clip(episode: int, images: np.ndarray | None = None, **other: Any) -> Clip:
    motion = speed(episode)
    images = window(motion, episode) if images is None else images
    rows = np.cumsum(motion)[:, None] * np.array([1.0, -0.5, 0.2])
    ends = images[[0, FRAMES // 2, FRAMES - 1]]
    change = np.abs(np.diff(images, axis=0)).mean(axis=(1, 2, 3)).astype(np.float64)
    return Clip(TOP, episode, ends, 0, images, change, 1, state=rows, action=rows, **other)


def findings(rule: Any, clips: list[Clip], others: list[Clip] | None = None) -> list[Finding]:
    episodes = SimpleNamespace(
        ids=np.arange(COUNT) + 100, lengths=np.full(COUNT, FRAMES), videos={}
    )
    feature = SimpleNamespace(is_video=False)
    catalog: Any = SimpleNamespace(
        episodes=episodes,
        fps=30,
        stats={},
        features={TOP: feature, WRIST: feature},
        data_path=lambda row: "data",
    )
    facts = ImageFacts({TOP: clips} | ({WRIST: others} if others else {}))
    rows: Any = SimpleNamespace(columns={}, digest=[bytes([row]) for row in range(COUNT)])
    return list(rule(catalog, rows, facts) if rule is check_images else rule(catalog, facts))


def named(found: list[Finding]) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.rule, one.place.episodes) for one in found if one.severity in ("error", "warning")]


def late(images: np.ndarray, frames: int) -> np.ndarray:
    return images[np.clip(np.arange(FRAMES) - frames, 0, FRAMES - 1)]


def test_sound_clips_raise_no_alarm() -> None:
    clips = [clip(episode) for episode in range(COUNT)]
    for rule in (check_motion, check_image_detail):
        assert named(findings(rule, clips)) == []
    same = [clip(episode, late(window(speed(episode), episode), 5)) for episode in range(COUNT)]
    assert named(findings(check_motion, same)) == []  # a camera that is late in all episodes


@pytest.mark.parametrize("frames", [3, -3, 7])
def test_images_of_an_episode_at_another_delay_are_named(frames: int) -> None:
    clips = [clip(episode) for episode in range(COUNT)]
    clips[6] = clip(6, late(clips[6].window, frames))
    assert named(findings(check_motion, clips)) == [("images.shifted", (106,))]


def test_a_video_that_plays_backwards_and_exchanged_videos_are_named() -> None:
    clips = [clip(episode) for episode in range(COUNT)]
    clips[4] = clip(4, clips[4].window[::-1])
    assert named(findings(check_motion, clips)) == [("images.shifted", (104,))]
    clips = [clip(episode) for episode in range(COUNT)]
    clips[2], clips[7] = clip(2, clips[7].window), clip(7, clips[2].window)
    assert named(findings(check_motion, clips)) == [("images.shifted", (102, 107))]


def test_motion_that_images_do_not_show_is_undecided() -> None:
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 255, (COUNT, FRAMES, 24, 32, 3)).astype(np.float32)
    found = findings(check_motion, [clip(episode, noise[episode]) for episode in range(COUNT)])
    assert [(one.rule, one.severity, one.place.camera) for one in found] == [
        ("images.shifted", "undecided", TOP)
    ]
    [few] = findings(check_motion, [clip(episode) for episode in range(3)])
    assert (few.rule, few.severity, few.measured) == ("images.shifted", "undecided", 3)


@pytest.mark.parametrize("frames", [2, 3, 4])
def test_each_image_shown_several_times_is_named(frames: int) -> None:
    clips = [clip(episode) for episode in range(COUNT)]
    slow = [images.window[np.arange(FRAMES) // frames * frames] for images in clips]
    assert held(clip(3, slow[3]).change) == frames
    clips[3] = clip(3, slow[3])
    assert named(findings(check_image_detail, clips)) == [("images.rate", (103,))]
    every = findings(check_image_detail, [clip(episode, slow[episode]) for episode in range(COUNT)])
    assert [(one.rule, one.severity) for one in every] == [("images.rate", "note")]


@pytest.mark.parametrize(
    "part", [slice(12), slice(12, None), slice(None)], ids=["above", "below", "whole"]
)
def test_images_with_parts_of_other_moments_are_named(part: slice) -> None:
    clips = [clip(episode) for episode in range(COUNT)]
    images = clips[5].window.copy()
    for frame in range(20, FRAMES, 3):
        images[frame, part] = clips[5].window[frame - 15, part]
    assert torn(clips[5].window) < 0.05 < torn(images)
    clips[5] = clip(5, images)
    assert named(findings(check_image_detail, clips)) == [("images.torn", (105,))]


def test_blur_tint_and_gray_are_named() -> None:
    rng = np.random.default_rng(1)
    picture = (
        rng.integers(0, 255, (1, 3, 24, 32)).repeat(8, axis=2).repeat(8, axis=3).astype(np.float32)
    )
    soft = (picture + np.roll(picture, 1, 3) + np.roll(picture, 2, 3) + np.roll(picture, 3, 3)) / 4
    values = [
        sharpness(images.astype(np.uint8)) for images in (picture, (soft + np.roll(soft, 2, 2)) / 2)
    ]
    assert values[1] < 0.75 * values[0]
    clips = [clip(episode, sharpness=values[episode == 8]) for episode in range(COUNT)]
    assert named(findings(check_image_detail, clips)) == [("images.sharpness", (108,))]
    for change in (lambda images: images * np.array([0.9, 1.05, 0.9], np.float32), grayed):
        clips = [clip(episode) for episode in range(COUNT)]
        clips[1] = clip(1, change(clips[1].window))
        assert named(findings(check_image_detail, clips)) == [("images.color", (101,))]
    [few] = [one for one in findings(check_image_detail, clips[:5]) if one.rule == "images.color"]
    assert few.severity == "undecided"


def grayed(images: np.ndarray) -> np.ndarray:
    return images.mean(axis=3, keepdims=True) + 0.2 * (images - images.mean(axis=3, keepdims=True))


def test_colors_and_cameras_exchanged_in_half_of_the_episodes_are_named() -> None:
    half = (0, 2, 3, 7, 9)
    clips = [clip(episode) for episode in range(COUNT)]
    swapped = [clip(one.row, one.window[..., ::-1]) if one.row in half else one for one in clips]
    [(rule, episodes)] = named(findings(check_changed_images, swapped))
    assert rule == "images.channels"
    assert set(episodes) in (
        {100 + row for row in half},
        {100 + row for row in range(COUNT) if row not in half},
    )
    others = [clip(episode, window(speed(episode), episode, camera=1)) for episode in range(COUNT)]
    assert [
        one for one in named(findings(check_images, clips, others)) if one[0] == "images.exchanged"
    ] == []
    for row in half:
        clips[row], others[row] = others[row], clips[row]
    [(rule, episodes)] = [
        one for one in named(findings(check_images, clips, others)) if one[0] == "images.exchanged"
    ]
    assert set(episodes) in (
        {100 + row for row in half},
        {100 + row for row in range(COUNT) if row not in half},
    )


def scene(down: int = 0, right: int = 0, zoom: float = 1.0, seed: int = 8) -> np.ndarray:
    """float32 (96, 128): boxes on a table, seen from another pose."""
    rng = np.random.default_rng(seed)
    table = np.full((192, 256), 120.0, np.float32)
    for _ in range(160):
        top, left, size = *rng.integers(0, (180, 240)), rng.integers(4, 14)
        table[top : top + size, left : left + size] = rng.uniform(20, 235)
    y, x = (
        np.rint((np.arange(size) - size / 2) / zoom + 96 * size / 96).astype(int) for size in GRAY
    )
    return table[np.ix_(y - down, x - right)]


@pytest.mark.parametrize("pose", [{"down": 5, "right": -7}, {"zoom": 1.2}, {"zoom": 0.85}], ids=str)
@pytest.mark.parametrize("midway", [False, True])
def test_a_camera_with_another_pose_is_named(pose: dict[str, Any], midway: bool) -> None:
    rng = np.random.default_rng(3)
    usual = scene()
    other = scene(**pose)
    grays = np.stack([[usual] * 3] * COUNT) + rng.normal(0, 3, (COUNT, 3, *GRAY)).astype(np.float32)
    clips = [clip(episode, gray=gray) for episode, gray in enumerate(grays)]
    assert findings(check_camera_poses, clips) == []
    grays[4, 2 * midway :] = other
    clips[4] = clip(4, gray=grays[4])
    assert named(findings(check_camera_poses, clips)) == [("images.moved", (104,))]
    alike, words = best_pose(fine(usual[None])[0], fine(other[None])[0])
    assert alike > 0.5
    assert words


def test_a_scene_that_always_differs_is_undecided() -> None:
    clips = [
        clip(episode, gray=np.stack([scene(seed=3 * episode + at) for at in range(3)]))
        for episode in range(COUNT)
    ]
    found = findings(check_camera_poses, clips)
    assert {(one.rule, one.severity) for one in found} == {("images.moved", "undecided")}
