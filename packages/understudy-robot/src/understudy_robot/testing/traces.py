"""Traces of the arm: two episodes in which it grasps and puts down."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy_client import Contract
from understudy_client.testing.arm import arm_contract, arm_observations
from understudy_robot.contracts.trace import Diagnosis, TraceWriter, diagnose

STEPS = 128
CHUNK = 8
CLOSES = 40
OPENS = 100


def graspable() -> Contract:
    """The arm, whose gripper closes at 0.8."""
    contract = arm_contract()
    arm = contract.robots["arm"]
    return replace(
        contract,
        robots={"arm": replace(arm, action=replace(arm.action, gripper={"gripper": (0.8, 0.0)}))},
    )


def recorded() -> np.ndarray:
    actions = np.tile(np.linspace(0, 1, STEPS)[:, None], (1, 7))
    actions[:, 6] = 0.8 * ((np.arange(STEPS) >= CLOSES) & (np.arange(STEPS) < OPENS))
    return actions


def traced(
    path: Path, predicted: np.ndarray, with_recording: bool = True, **changes: Any
) -> Diagnosis:
    """Write the trace of two episodes of one robot, and diagnose it."""
    writer = TraceWriter(path, graspable(), "arm")
    truth = recorded()
    for episode in range(2):
        seen = arm_observations(STEPS // CHUNK, episode)
        for number, step in enumerate(range(0, STEPS, CHUNK)):
            shown = {
                **seen[number],
                **{key: change(seen[number][key]) for key, change in changes.items()},
            }
            rows = truth[step : step + CHUNK] if with_recording else None
            writer.add("robot 0", step, shown, predicted[step : step + CHUNK], 0.01, rows)
    writer.close()
    return diagnose(path)


def write_broken(path: Path, content: bytes) -> None:
    """Write a file that is no trace: in `content`, HEAD and ROW are lines of a trace, and HEADS
    is a head of two robots.
    """
    traced(path, recorded())
    head, row, *_ = path.read_bytes().splitlines()
    twice = json.loads(head)
    twice["robots"] = {**twice["robots"], "another": next(iter(twice["robots"].values()))}
    heads = json.dumps(twice).encode()
    path.write_bytes(content.replace(b"HEADS", heads).replace(b"HEAD", head).replace(b"ROW", row))
