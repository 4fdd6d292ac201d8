"""Ray-cast images against geometry worked out by hand."""

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

from understudy_base.testing.refusals import refused  # noqa: E402
from understudy_robot.envs.ray_camera import AMBIENT, SKY, RayCamera, pinhole_rays  # noqa: E402

HEIGHT = 48
WIDTH = 64
FOVY = 50.0
CAMERA = np.array([0.1, -0.2, 2.0])  # looks straight down: image right is +x, image up is +y


def scene(geoms: str, extra: str = "") -> tuple["mujoco.MjModel", "mujoco.MjData"]:
    place = " ".join(map(str, CAMERA))
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco>{extra}<worldbody><camera name="top" pos="{place}" '
        f'fovy="{FOVY}"/>{geoms}</worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def directions() -> np.ndarray:
    """Unit rays through the pixel centres (H, W, 3), by the textbook and pixel by pixel."""
    focal = HEIGHT / 2 / np.tan(np.radians(FOVY / 2))
    rays = np.empty((HEIGHT, WIDTH, 3))
    for i in range(HEIGHT):
        for j in range(WIDTH):
            ray = np.array([j + 0.5 - WIDTH / 2, HEIGHT / 2 - i - 0.5, -focal])
            rays[i, j] = ray / np.linalg.norm(ray)
    return rays


def sphere_distance(center: np.ndarray, radius: float) -> np.ndarray:
    """Distance along each ray to a sphere, inf where it misses."""
    along = directions() @ (center - CAMERA)
    under = along**2 - np.sum((center - CAMERA) ** 2) + radius**2
    return np.where(under >= 0, along - np.sqrt(np.maximum(under, 0)), np.inf)


def box_distance(center: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Distance along each ray to an axis-aligned box (the slab method), inf where it misses."""
    near = (center - np.sign(directions()) * half - CAMERA) / directions()
    far = (center + np.sign(directions()) * half - CAMERA) / directions()
    enter = near.max(axis=-1)
    leave = far.min(axis=-1)
    return np.where(enter <= leave, enter, np.inf)


def test_pinhole_rays_equal_the_textbook() -> None:
    np.testing.assert_allclose(pinhole_rays(FOVY, HEIGHT, WIDTH), directions(), atol=1e-12)


def test_cast_hits_a_sphere_and_a_box_where_geometry_says() -> None:
    ball = np.array([0.45, 0.15, 0.6])
    box = np.array([-0.3, -0.4, 0.2])
    half = np.array([0.2, 0.1, 0.15])
    model, data = scene(
        f'<geom name="ball" type="sphere" size="0.22" pos="{ball[0]} {ball[1]} {ball[2]}"/><geom '
        f'name="box" type="box" size="{half[0]} {half[1]} {half[2]}" pos="{box[0]} {box[1]} '
        f'{box[2]}"/>'
    )
    hit, distance = RayCamera(model, "top", HEIGHT, WIDTH).cast(data)
    expected = np.stack([sphere_distance(ball, 0.22), box_distance(box, half)])
    nearest = np.where(np.isfinite(expected.min(0)), expected.argmin(0), -1)
    assert (nearest == 0).sum() > 50  # both must be visible
    assert (nearest == 1).sum() > 50
    np.testing.assert_array_equal(hit, nearest)
    np.testing.assert_allclose(distance[hit >= 0], expected.min(0)[hit >= 0], atol=1e-9)
    assert (distance[hit < 0] == -1).all()


def test_cast_hits_a_small_ball_at_its_projection() -> None:
    for offset in ([0.5, 0.3, -1.2], [-0.4, 0.2, -1.0], [0.1, -0.45, -1.1]):
        point = CAMERA + offset
        model, data = scene(
            f'<geom type="sphere" size="0.05" pos="{point[0]} {point[1]} {point[2]}"/>'
        )
        hit, _ = RayCamera(model, "top", HEIGHT, WIDTH).cast(data)
        focal = HEIGHT / 2 / np.tan(np.radians(FOVY / 2))
        # in pixel edges: the first pixel is 0..1
        column = WIDTH / 2 + focal * offset[0] / -offset[2]
        row = HEIGHT / 2 - focal * offset[1] / -offset[2]
        rows, columns = np.nonzero(hit >= 0)
        assert abs(columns.mean() + 0.5 - column) < 0.5
        assert abs(rows.mean() + 0.5 - row) < 0.5


def test_render_shades_faces_by_their_true_normals() -> None:
    """Over the inside of a box's top the brightness is that of a horizontal plane; sky where
    nothing is hit.
    """
    model, data = scene('<geom type="box" size="0.3 0.3 0.1" rgba="0.2 0.6 0.8 1"/>')
    camera = RayCamera(model, "top", HEIGHT, WIDTH)
    image, (hit, _) = camera.render(data), camera.cast(data)
    plane_model, plane_data = scene('<geom type="plane" size="9 9 1" rgba="0.2 0.6 0.8 1"/>')
    floor = RayCamera(plane_model, "top", HEIGHT, WIDTH).render(plane_data)
    assert image.dtype == np.uint8
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert (floor == floor[0, 0]).all()
    top = np.isclose(
        box_distance(np.zeros(3), np.array([0.3, 0.3, 0.1])) * directions()[..., 2], -1.9
    )
    assert top.sum() > 100
    assert (np.abs(image[top].astype(int) - floor[0, 0]) <= 1).all()
    np.testing.assert_array_equal(
        image[hit < 0], np.broadcast_to(SKY.astype(np.uint8), image[hit < 0].shape)
    )


def test_render_makes_a_ball_brighter_on_the_side_of_the_light() -> None:
    model, data = scene('<geom type="sphere" size="0.5" rgba="1 1 1 1"/>')
    image = RayCamera(model, "top", HEIGHT, WIDTH).render(data).astype(int)[..., 0]
    rows, columns = np.nonzero(RayCamera(model, "top", HEIGHT, WIDTH).cast(data)[0] >= 0)
    values = image[rows, columns]
    towards = columns - columns.mean() > 4  # the light comes from +x, -y and above
    assert values[towards].mean() > values[columns - columns.mean() < -4].mean() + 10
    assert values.min() >= int(255 * AMBIENT)


def test_render_uses_the_material_of_a_geom_without_color() -> None:
    model, data = scene(
        '<geom type="plane" size="9 9 1" material="paint"/>',
        '<asset><material name="paint" rgba="1 0 0 1"/></asset>',
    )
    red, green, blue = RayCamera(model, "top", HEIGHT, WIDTH).render(data)[10, 10]
    assert red > 150
    assert green == blue == 0


def test_cast_sees_the_selected_groups_only() -> None:
    model, data = scene(
        '<geom type="sphere" size="0.5" pos="0 0 1" group="3"/><geom name="floor" type="plane" '
        'size="9 9 1"/>'
    )
    assert set(np.unique(RayCamera(model, "top", HEIGHT, WIDTH).cast(data)[0])) == {0, 1}
    assert set(
        np.unique(RayCamera(model, "top", HEIGHT, WIDTH, groups=(0, 1, 2)).cast(data)[0])
    ) == {1}


def test_ray_camera_names_an_unknown_camera() -> None:
    model, _ = scene('<geom type="sphere" size="0.5"/>')
    with refused("'side'", ["top"], kind=ValueError):
        RayCamera(model, "side", 8, 8)


def test_fixed_camera_casts_the_same_as_a_moving_one() -> None:
    """A fixed camera casts rays near solid bodies only; a camera on a moving body casts them
    all.
    """
    place = " ".join(map(str, CAMERA))
    bodies = (
        '<geom type="plane" size="0.6 5 1"/><geom type="plane" pos="0 0 -1" size="9 9 1" rgba="1 0 '
        '0 1"/><geom type="box" size="0.02 0.9 0.02" pos="0.3 0 0.3" euler="0 0 30"/>'
        # the camera is inside its bounding sphere
        '<geom type="box" size="1.5 0.02 1.5" pos="0 -0.9 1"/>'
        '<geom type="sphere" size="0.4" pos="0 0 0.9" rgba="1 1 1 0"/>'  # invisible
        '<body name="ball"><freejoint/><geom type="sphere" size="0.1"/></body>'
        f'<body pos="{place}"><freejoint/><inertial mass="1" diaginertia="1 1 1" pos="0 0 0"/>'
        f'<camera name="carried" fovy="{FOVY}"/></body>'
    )
    model, data = scene(bodies)
    fixed, carried = (RayCamera(model, name, HEIGHT, WIDTH) for name in ("top", "carried"))
    seen = set()
    for x in (-0.5, 0.0, 0.4, 5.0):
        data.qpos[:3] = [x, 0.2, 0.5]
        mujoco.mj_forward(model, data)
        (hit, distance), (all_hit, all_distance) = fixed.cast(data), carried.cast(data)
        np.testing.assert_array_equal(hit, all_hit)
        np.testing.assert_allclose(distance, all_distance, atol=1e-9)
        np.testing.assert_array_equal(fixed.render(data), carried.render(data))
        seen |= set(np.unique(hit))
    assert seen == {0, 1, 2, 3, 5}
