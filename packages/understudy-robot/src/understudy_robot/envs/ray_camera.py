"""Images of a MuJoCo scene by one ray per pixel on the CPU (`mj_multiRay`), without a GL library or
a display.

Rendered are a pinhole camera, flat colors and Lambert shading. Left out are textures, shadows,
transparency and sites (goal marks that are not geoms), which MuJoCo's rays do not hit. On one
machine the same scene gives the same image, bit for bit.

Before release 3.5 `mj_multiRay` misses parts of large boxes close to the camera, because it culls
by the angles of a box's corners without a margin. Build floors and table tops as planes, which are
never culled.
"""

import copy

import numpy as np

from understudy_base import optional_imports

with optional_imports():
    import mujoco

SKY = np.array([196, 208, 220], dtype=np.float32)  # color where a ray hits nothing
# direction towards the light, world frame, unit length
SUN = np.array([0.30, -0.45, 0.84], dtype=np.float32)
AMBIENT = 0.45
_FAR = 1e6  # metres


def pinhole_rays(fovy: float, height: int, width: int) -> np.ndarray:
    """Unit rays through the pixel centres, camera frame (x right, y up, looking along -z).

    Args:
        fovy: MuJoCo's vertical field of view in degrees.
        height: Rows of the image.
        width: Columns of the image.

    Returns:
        float64 (height, width, 3), row 0 at the top.
    """
    focal = 0.5 * height / np.tan(np.deg2rad(fovy) / 2)  # in pixels
    across = (np.arange(width) + 0.5 - width / 2) / focal
    down = (np.arange(height) + 0.5 - height / 2) / focal
    x, y = np.meshgrid(across, down)
    rays = np.stack([x, -y, -np.ones_like(x)], axis=-1)
    return rays / np.linalg.norm(rays, axis=-1, keepdims=True)


def _shade(normals: np.ndarray) -> np.ndarray:
    """Brightness (n,) in [AMBIENT, 1] of surfaces with `normals` (n, 3), of any length."""
    towards = normals @ SUN / np.sqrt(np.einsum("ni,ni->n", normals, normals) + 1e-30)
    return AMBIENT + (1 - AMBIENT) * np.maximum(towards, 0)


def _neighbor_normals(
    rays: np.ndarray, depth: np.ndarray, pixels: np.ndarray, height: int, width: int
) -> np.ndarray:
    """Estimate normals (n, 3), not normalized, facing the camera, at flat pixel numbers `pixels`
    (n,).

    A normal is the cross product of the differences to a horizontal and a vertical neighbour. Of
    the two neighbours in a direction the one with the smaller depth jump is used, so that no
    difference crosses the edge of an object. `rays` is (H*W, 3), `depth` (H*W,).
    """
    row = pixels // width
    column = pixels % width
    center = depth[pixels]

    def difference(step: int, at_start: np.ndarray, at_end: np.ndarray) -> np.ndarray:
        before = np.where(at_start, pixels, pixels - step)
        after = np.where(at_end, pixels, pixels + step)
        jump_before = np.where(at_start, np.inf, np.abs(depth[before] - center))
        jump_after = np.where(at_end, np.inf, np.abs(depth[after] - center))
        ahead = jump_after <= jump_before
        a = np.where(ahead, pixels, before)
        b = np.where(ahead, after, pixels)
        return rays[b] * depth[b, None] - rays[a] * depth[a, None]

    u = difference(1, column == 0, column == width - 1)  # to the right
    v = difference(width, row == 0, row == height - 1)  # downwards
    return np.cross(v, u)


def _colors(model: mujoco.MjModel) -> np.ndarray:
    """Unshaded RGB of every geom, 0..255, float32 (ngeom + 1, 3), the sky last.

    As in MuJoCo's renderer, a geom has its own color, or its material's where its own is the
    default grey.
    """
    colors = model.geom_rgba[:, :3].copy()
    painted = (model.geom_matid >= 0) & (model.geom_rgba == [0.5, 0.5, 0.5, 1]).all(axis=1)
    colors[painted] = model.mat_rgba[model.geom_matid[painted], :3]
    return np.concatenate([255 * colors, SKY[None]]).astype(np.float32)


class RayCamera:
    """A named camera of one model, which renders the model's visible geoms.

    `groups` are the rendered geom groups; None renders all. Many scenes have a separate group for
    collision shapes.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        camera: str,
        height: int,
        width: int,
        groups: tuple[int, ...] | None = None,
    ) -> None:
        self._camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        if self._camera < 0:
            names = [model.camera(i).name for i in range(model.ncam)]
            raise ValueError(f"unknown camera {camera!r}; the scene has {names}")
        self.height = height
        self.width = width
        self._model = model
        # (H*W, 3)
        self._rays = pinhole_rays(float(model.cam_fovy[self._camera]), height, width).reshape(-1, 3)
        self._colors = _colors(model)
        self._groups = None
        if groups is not None:
            self._groups = np.zeros(6, dtype=np.uint8)
            self._groups[list(groups)] = 1
        # by geom id, then the sky
        self._solid = np.append(model.geom_type != mujoco.mjtGeom.mjGEOM_PLANE, False)
        self._fixed = model.body_weldid[model.cam_bodyid[self._camera]] == 0
        self._planes: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def cast(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Cast the ray of every pixel.

        Returns:
            Geom ids int32 (H, W) and distances along the ray in metres, float64 (H, W); -1 where a
            ray hits nothing.
        """
        hit, distance, _ = self._cast(data)
        return hit.reshape(self.height, self.width), distance.reshape(self.height, self.width)

    def _cast(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cast all rays: geom ids (H*W,), distances (H*W,), unit rays in world axes (H*W, 3).

        MuJoCo allows planes on static bodies only, so their hits never change for a fixed camera.
        They are cast once; after that only rays near a solid body are cast.
        """
        if not self._fixed:
            rays = self._world_rays(data)
            return *self._cast_rays(data, rays), rays
        if self._planes is None:
            rays = self._world_rays(data)
            bare = copy.copy(data)
            # behind us
            bare.geom_xpos[self._solid[:-1]] = data.cam_xpos[self._camera] - _FAR * rays.mean(
                axis=0
            )
            self._planes = *self._cast_rays(bare, rays), rays
        hit = self._planes[0].copy()
        distance = self._planes[1].copy()
        rays = self._planes[2]
        near = np.flatnonzero(self._near_solids(data, rays))
        hit[near], distance[near] = self._cast_rays(data, rays[near])
        return hit, distance, rays

    def _world_rays(self, data: mujoco.MjData) -> np.ndarray:
        return self._rays @ data.cam_xmat[self._camera].reshape(3, 3).T

    def _near_solids(self, data: mujoco.MjData, rays: np.ndarray) -> np.ndarray:
        """Mark the rays (n, 3) that meet the bounding sphere of a solid geom: bool (n,)."""
        towards = data.geom_xpos[self._solid[:-1]] - data.cam_xpos[self._camera]  # (geoms, 3)
        radius = 1.001 * self._model.geom_rbound[self._solid[:-1]]
        # A unit ray passes a centre c within r where ray . c >= sqrt(|c|^2 - r^2); from inside
        # every ray does.
        free = np.einsum("gi,gi->g", towards, towards) - radius**2
        least = np.where(free > 0, np.sqrt(np.maximum(free, 0)), -np.inf)
        return (towards @ rays.T >= least[:, None]).any(axis=0)

    def _cast_rays(self, data: mujoco.MjData, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First hits of the rays (n, 3): geom ids int32 (n,) and distances float64 (n,), -1 for
        none.
        """
        hit = np.empty(len(rays), dtype=np.int32)
        distance = np.empty(len(rays), dtype=np.float64)
        mujoco.mj_multiRay(
            self._model,
            data,
            data.cam_xpos[self._camera],
            rays.ravel(),
            self._groups,
            1,  # include static geoms
            -1,  # exclude no body
            hit,
            distance,
            len(rays),
            _FAR,
        )
        return hit, distance

    def render(self, data: mujoco.MjData) -> np.ndarray:
        """Render an image, uint8 (H, W, 3) RGB. `data` must be up to date (`mj_forward` or a
        step).
        """
        hit, distance, rays = self._cast(data)
        palette = self._palette(data)  # the sky is last, so index -1 (no hit) finds it
        image = palette.astype(np.uint8)[hit]
        solid = np.flatnonzero(self._solid[hit])
        # MuJoCo 3.3.0 returns no normals of hits: those of solid bodies are estimated from
        # neighbouring pixels.
        depth = np.where(hit < 0, _FAR, distance)
        normals = _neighbor_normals(rays, depth, solid, self.height, self.width)
        image[solid] = palette[hit[solid]] * _shade(normals)[:, None]
        return image.reshape(self.height, self.width, 3)

    def _palette(self, data: mujoco.MjData) -> np.ndarray:
        """Color of every geom, 0..255, float32 (ngeom + 1, 3), the sky last; planes are already
        shaded.
        """
        palette = self._colors.copy()
        flat = np.flatnonzero(~self._solid[:-1])
        palette[flat] *= _shade(data.geom_xmat[flat].reshape(-1, 3, 3)[:, :, 2])[:, None]
        return palette
