"""A small simulated table: three colored blocks, a hand, the task "pick up the {color} block".

It needs only the `mujoco` wheel: `envs/ray_camera.py` renders the images without a GL library. The
hand is a mocap body without contacts, which grasps a block by activating a weld. Grasp mechanics
are left out on purpose: the task is to see, to read and to move.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from understudy_base import optional_imports
from understudy_robot.envs.env import (
    Outcome,
    image_feature,
    package_versions,
    select_by_name,
    uniforms,
    vector_feature,
)
from understudy_robot.envs.ray_camera import RayCamera

with optional_imports():
    import mujoco

COLORS = ("red", "green", "blue")
FPS = 10
MAX_STEPS = 70
STEP = 0.015  # metres that the hand moves along an axis for an action of 1
REACH = 0.018  # metres from hand to block centre within which a closed hand holds the block
LIFTED = 0.10  # metres above the table (block centre) at which a block counts as picked up
HALF = 0.022  # half the edge of a block
SPREAD = 0.13  # block centres lie in [-SPREAD, SPREAD] x [-SPREAD, SPREAD]
# least distance of block centres, metres: more than the diagonal of a block's face (0.062)
APART = 0.075
LOW = np.array([-0.18, -0.18, HALF])  # limits of the hand's position
HIGH = np.array([0.18, 0.18, 0.20])
# standard deviation added to the executed action (in [-1, 1]); the clean action is recorded
NOISE = 0.15
_HOVER = 0.05  # metres above the block's centre while the hand travels
_ABOVE = 0.010  # metres off the block's axis within which the hand descends
CAMERA = "front"
_SUBSTEPS = 20
# finger offset from the hand's axis, which makes the grip visible
_OPEN = 0.034
_CLOSED = HALF + 0.004

_RGBA = {"red": "0.86 0.13 0.12 1", "green": "0.10 0.66 0.20 1", "blue": "0.12 0.26 0.90 1"}
_BLOCK = """
    <body name="{color}" pos="0 0 {half}">
      <freejoint/>
      <geom name="{color}" type="box" size="{half} {half} {half}" rgba="{rgba}"
        mass="0.05" friction="1 0.01 0.001"/>
    </body>"""
_SCENE = """
<mujoco model="tabletop">
  <option timestep="0.005" integrator="implicitfast" cone="elliptic"/>
  <default>
    <default class="hand"><geom rgba="0.25 0.25 0.28 1" contype="0" conaffinity="0"/></default>
  </default>
  <worldbody>
    <camera name="front" pos="0 -0.42 0.52" xyaxes="1 0 0 0 0.75 0.66" fovy="36"/>
    <geom name="table" type="plane" size="5 5 0.1" rgba="0.87 0.82 0.73 1"/>
    <body name="hand" mocap="true">
      <geom name="wrist" class="hand" type="capsule" fromto="0 0 0.06 0 0 0.13" size="0.009"/>
      <geom name="palm" class="hand" type="box" pos="0 0 0.05" size="0.042 0.009 0.008"/>
      <geom name="left" class="hand" type="box" pos="-0.034 0 0.018" size="0.004 0.009 0.026"
        rgba="1 0.85 0.15 1"/>
      <geom name="right" class="hand" type="box" pos="0.034 0 0.018" size="0.004 0.009 0.026"
        rgba="1 0.85 0.15 1"/>
    </body>{blocks}
  </worldbody>
  <equality>{welds}
  </equality>
</mujoco>"""


TASKS = {color: f"pick up the {color} block" for color in COLORS}
"""Color of a block -> instruction."""


def layout(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the initial scene, a pure function of `seed` (0 <= seed < 2**128).

    Centres are independent and uniform on the square, conditioned on pairwise distances of at least
    `APART`.

    Returns:
        Block centres (3, 2) in metres, block yaw (3,) in radians, and hand position (3,).
    """
    draws = uniforms(seed, 7 + 6 * 64)
    hand = np.array([-0.12, -0.12, 0.10]) + draws[:3] * np.array([0.24, 0.24, 0.07])
    yaw = draws[3:6] * (np.pi / 2)
    tries = SPREAD * (2 * draws[7:].reshape(64, 3, 2) - 1)
    # three blocks: three pairs
    gaps = np.linalg.norm(tries - np.roll(tries, 1, axis=1), axis=2).min(axis=1)
    free = np.flatnonzero(gaps >= APART)
    # A try is free with probability 0.5. A seed whose 64 tries all fail (never seen) would get its
    # widest one.
    chosen = free[0] if len(free) else int(np.argmax(gaps))
    return tries[chosen], yaw, hand


class TabletopEnv:
    """The tabletop as an `Env`.

    Keys: `observation.images.front`, `observation.state` (hand x, y, z in metres, grip: 1 closed, 0
    open). Actions, each in [-1, 1]: hand velocity along x, y, z (1 is 1.5 cm per step) and grip
    (above 0 closes). A closed empty hand grasps the nearest block within 1.8 cm.

    An episode ends when any block is above 10 cm, or after 70 steps. Everything is a function of
    the seed and the actions. The layout depends on the seed alone, so the three tasks of a seed
    share one scene.

    Attributes:
        color: color of the block that the instruction of this episode names.
        model: the scene.
        data: its state.
    """

    name = "tabletop"
    fps = FPS
    max_steps = MAX_STEPS
    episodes = 30
    one_scene = True
    noise = NOISE
    meanings: ClassVar = {
        f"observation.images.{CAMERA}": {"role": CAMERA, "orientation": "upright"},
        "observation.state": {
            "units": ("m", "m", "m", "1"),
            "roles": ("position", "position", "position", "gripper"),
            "frame": "base",
            "gripper": {"grip": (1.0, 0.0)},
        },
        "action": {
            "units": ("1.5 cm per step",) * 3 + ("1",),
            "roles": ("position", "position", "position", "gripper"),
            "references": ("state", "state", "state", "absolute"),
            "frame": "base",
            "gripper": {"grip": (1.0, -1.0)},
        },
    }
    conditions = package_versions("mujoco")

    def __init__(
        self,
        size: int | None = None,
        cameras: Sequence[str] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        size = 64 if size is None else size
        if cameras is not None and tuple(cameras) != (CAMERA,):
            raise ValueError(
                f"cameras={list(cameras)}: the tabletop always has the one camera {CAMERA!r}"
            )
        if size < 8:
            raise ValueError(f"size={size}: must be at least 8 pixels")
        self._color_of = {
            text: color for color, text in select_by_name("task", tasks, TASKS).items()
        }
        self.tasks = tuple(self._color_of)
        self.features = {
            f"observation.images.{CAMERA}": image_feature(size),
            "observation.state": vector_feature(["x", "y", "z", "grip"]),
            "action": vector_feature(["dx", "dy", "dz", "grip"]),
        }
        blocks = "".join(_BLOCK.format(color=c, half=HALF, rgba=_RGBA[c]) for c in COLORS)
        welds = "".join(
            f'\n    <weld name="{c}" body1="hand" body2="{c}" active="false"/>' for c in COLORS
        )
        self.model = mujoco.MjModel.from_xml_string(_SCENE.format(blocks=blocks, welds=welds))
        self.data = mujoco.MjData(self.model)
        self._camera = RayCamera(self.model, "front", size, size)
        self._bodies = [self.model.body(c).id for c in COLORS]
        self._fingers = [(self.model.geom("left").id, -1), (self.model.geom("right").id, 1)]
        self.color = self._color_of[self.tasks[0]]
        self._closed = False
        self._steps = 0

    @property
    def hand(self) -> np.ndarray:
        """Hand position float64 (3,), metres."""
        return self.data.mocap_pos[0].copy()

    @property
    def blocks(self) -> np.ndarray:
        """Block centres float64 (3, 3), metres, in the order of `COLORS`."""
        return self.data.xpos[self._bodies].copy()

    @property
    def held(self) -> str | None:
        """Color of the block in the hand, or None."""
        active = np.flatnonzero(self.data.eq_active)
        return COLORS[active[0]] if len(active) else None

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self._color_of:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        self.color = self._color_of[task]
        centers, yaw, hand = layout(seed)
        mujoco.mj_resetData(self.model, self.data)
        for i in range(len(COLORS)):
            turn = [np.cos(yaw[i] / 2), 0, 0, np.sin(yaw[i] / 2)]
            self.data.qpos[7 * i : 7 * i + 7] = [*centers[i], HALF, *turn]
        self.data.mocap_pos[0] = hand
        self._closed = False
        self._steps = 0
        mujoco.mj_forward(self.model, self.data)
        return self._observation()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action; see `Env.step`."""
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (4,) or not np.isfinite(action).all():
            raise ValueError(
                f"an action has four finite numbers (dx, dy, dz, grip), got {action!r}"
            )
        self.data.mocap_pos[0] = np.clip(self.hand + STEP * np.clip(action[:3], -1, 1), LOW, HIGH)
        self._closed = bool(action[3] > 0)
        if not self._closed:
            self.data.eq_active[:] = 0
        mujoco.mj_step(self.model, self.data, _SUBSTEPS)
        mujoco.mj_kinematics(self.model, self.data)  # mj_step leaves body poses one substep behind
        if self._closed and self.held is None:
            self._grasp()
        self._steps += 1
        lifted = np.flatnonzero(self.blocks[:, 2] > LIFTED)
        completed = TASKS[COLORS[lifted[0]]] if len(lifted) else None
        return self._observation(), Outcome(
            completed, completed is not None or self._steps >= MAX_STEPS
        )

    def render(self) -> np.ndarray:
        """Render the camera image, uint8 (size, size, 3) RGB."""
        distance = _CLOSED if self._closed else _OPEN
        for geom, side in self._fingers:
            self.model.geom_pos[geom, 0] = side * distance
        mujoco.mj_kinematics(self.model, self.data)
        return self._camera.render(self.data)

    def _grasp(self) -> None:
        gaps = np.linalg.norm(self.blocks - self.hand, axis=1)
        nearest = int(np.argmin(gaps))
        if gaps[nearest] > REACH:
            return
        body = self._bodies[nearest]
        # Weld the block in its present pose relative to the hand: grasping moves nothing, and the
        # hand never turns. eq_data of a weld: anchor in body2 (3), relative position (3) and
        # orientation (4), torque scale.
        self.model.eq_data[nearest] = [
            0,
            0,
            0,
            *(self.data.xpos[body] - self.hand),
            *self.data.xquat[body],
            1,
        ]
        self.data.eq_active[nearest] = 1

    def expert(self) -> np.ndarray:
        """Compute the noise-free action float32 (4,) towards the named block: over it, down, grip,
        lift.

        It is a function of the current state, without memory, so it is right after any disturbance.
        Recorded next to noisy execution, it shows a policy how to recover.
        """
        if self.held == self.color:
            return np.array([0, 0, 1, 1], dtype=np.float32)
        if self.held is not None:  # a wrong block: let go
            return np.array([0, 0, 0, -1], dtype=np.float32)
        gap = self.blocks[COLORS.index(self.color)] - self.hand
        off_axis = float(np.linalg.norm(gap[:2]))
        if off_axis > _ABOVE:
            gap[2] = max(gap[2] + _HOVER, 0.0) if off_axis < 0.04 else gap[2] + _HOVER
        near = np.linalg.norm(gap) < REACH
        move = gap / STEP
        move = move / max(1.0, float(np.abs(move).max()))  # at full speed in a straight line
        grip = 1.0 if near else -1.0
        return np.append(move, grip).astype(np.float32)

    def _observation(self) -> dict[str, np.ndarray]:
        state = np.append(self.hand, float(self._closed)).astype(np.float32)
        return {f"observation.images.{CAMERA}": self.render(), "observation.state": state}
