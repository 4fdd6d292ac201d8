"""Standard keys: renaming changes no data, and all errors of a mapping are reported at once."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.standard_keys import rename_keys
from understudy_data.testing.datasets import Spec, edit_json, write_dataset

ACTION = "action"
STATE = "observation.state"
REWARD = "next.reward"
CAM = "observation.images.cam_0"
PNG = "observation.images.png"
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
OWN = (ACTION, STATE, REWARD, CAM, PNG)
WINDOWS = {ACTION: [0.0, 0.1], STATE: [-0.1, 0.0, 0.1], CAM: [-0.1, 0.0], PNG: [0.0, 0.2]}


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("standard")
    for version in ("v2.1", "v3.0"):
        write_dataset(
            root / version, Spec(version=version, cameras=(CAM,), images=(PNG,), rich=True)
        )
    return {version: root / version for version in ("v2.1", "v3.0")}


def equal(one: Any, two: Any) -> bool:
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else bool(one == two)


@settings(max_examples=25)
@given(
    version=st.sampled_from(["v2.1", "v3.0"]),
    vectors=st.permutations([ACTION, STATE, "learnt"]),
    cameras=st.permutations([FRONT, CAM, WRIST, PNG]),
    windows=st.sampled_from([{}, WINDOWS]),
)
def test_rename_only_the_names_change(
    roots: dict[str, Path],
    version: str,
    vectors: list[str],
    cameras: list[str],
    windows: dict[str, list[float]],
) -> None:
    """Any vectors and cameras under any names, also each other's, give the values that they give
    under their own.
    """
    standard = dict(zip((ACTION, STATE, CAM, PNG), (*vectors[:2], *cameras[:2])))
    names = {key: own for own, key in standard.items()}
    plain = EpisodeDataset(roots[version], windows)
    given_ = {standard[own]: deltas for own, deltas in windows.items()}
    data = EpisodeDataset(roots[version], given_, names=names)
    assert data.segments.tolist() == plain.segments.tolist()
    assert list(data.keys) == [standard.get(key, key) for key in plain.keys]
    assert data.video_keys == (standard[CAM],)
    assert data.windows == {standard[key]: count for key, count in plain.windows.items()}
    assert (data.reach, data.gop, data.name) == (plain.reach, plain.gop, plain.name)
    places = plain.locate([0, 3, 8, 18])
    want = plain.batch(*places)
    got = data.batch(*places)

    def renamed(key: str) -> str:
        own = key.removesuffix("_is_pad")
        return standard.get(own, own) + key[len(own) :]

    assert got.keys() == {renamed(key) for key in want}
    for key, value in want.items():
        assert equal(got[renamed(key)], value), key
    again = pickle.loads(pickle.dumps(data))
    assert all(equal(again[5][key], value) for key, value in data[5].items())


def test_rename_what_the_catalog_says_bears_the_names_too(roots: dict[str, Path]) -> None:
    plain = Catalog.open(roots["v3.0"])
    names = {ACTION: STATE, STATE: ACTION, FRONT: CAM}
    catalog = EpisodeDataset(plain, names=names).catalog
    assert (
        catalog.features[ACTION].shape
        == plain.features[STATE].shape
        != plain.features[ACTION].shape
    )
    assert catalog.features[FRONT].key == FRONT
    assert CAM not in catalog.features
    assert catalog.camera_keys == (FRONT, PNG)
    assert catalog.stats[ACTION]["mean"].tolist() == plain.stats[STATE]["mean"].tolist()
    assert catalog.stats[STATE]["mean"].tolist() == plain.stats[ACTION]["mean"].tolist()
    assert catalog.video_path(FRONT, 0) == plain.video_path(CAM, 0)
    back = rename_keys(catalog, {STATE: ACTION, ACTION: STATE, CAM: FRONT})
    assert (back.stored_names, list(back.features)) == ({}, list(plain.features))
    assert rename_keys(plain, {}) is plain
    assert rename_keys(plain, {ACTION: ACTION}) is plain


def test_rename_one_key_under_two_names(roots: dict[str, Path]) -> None:
    """A robot that records no action: the state one frame later serves as one."""
    names = {ACTION: STATE, STATE: STATE, FRONT: CAM, WRIST: CAM}
    keys = [ACTION, STATE, FRONT, WRIST]
    data = EpisodeDataset(roots["v3.0"], {ACTION: [0.1]}, names=names, keys=keys)
    batch = data.batch(np.asarray([1, 1]), np.asarray([3, 4]))
    assert torch.equal(batch[ACTION][0, 0], batch[STATE][1])
    assert torch.equal(batch[FRONT], batch[WRIST])


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rename_several_columns_are_one_vector(roots: dict[str, Path], version: str) -> None:
    """Values, windows, names and recorded statistics follow each other as written; a number is a
    vector of one.
    """
    plain = EpisodeDataset(roots[version], {ACTION: [0.0, 0.1], STATE: [0.0, 0.1]})
    where = plain.locate([0, 3, 8, 18])
    want = plain.batch(*where)
    for own, parts in (
        (f"{STATE} + {ACTION}", (STATE, ACTION)),
        (f"{ACTION}+{STATE}", (ACTION, STATE)),
    ):
        data = EpisodeDataset(
            roots[version], {ACTION: [0.0, 0.1]}, names={ACTION: own, STATE: STATE}
        )
        got = pickle.loads(pickle.dumps(data)).batch(*where)
        assert torch.equal(got[ACTION], torch.cat([want[part] for part in parts], dim=-1))
        assert torch.equal(got[STATE], want[STATE][:, 0])
        feature = data.catalog.features[ACTION]
        assert feature.shape == (got[ACTION].shape[-1],) == (len(set(feature.dimension_names)),)
        recorded = plain.catalog.stats
        for name in ("mean", "max"):
            want_ = np.concatenate([recorded[part][name] for part in parts])
            assert data.catalog.stats[ACTION][name].tolist() == want_.tolist()
    one = EpisodeDataset(roots[version], names={ACTION: f"{ACTION} + next.reward"}, keys=[ACTION])
    rewards = EpisodeDataset(roots[version], keys=[ACTION, "next.reward"]).batch(*where)
    both = torch.cat([rewards[ACTION], rewards["next.reward"].reshape(-1, 1)], dim=1)
    assert torch.equal(one.batch(*where)[ACTION], both)


@pytest.mark.parametrize(
    ("key", "own", "named"),
    [
        (ACTION, f"{ACTION} + acton", "'acton'"),
        (ACTION, f"{ACTION} + {ACTION}", f"'{ACTION} + {ACTION}'"),
        (ACTION, f"{ACTION} + {CAM}", f"'{CAM}'"),
        ("learnt", f"{ACTION} + {STATE}", "'learnt'"),
    ],
)
def test_rename_refuses_columns_that_are_no_vector(
    roots: dict[str, Path], key: str, own: str, named: str
) -> None:
    with refused(named, where="v3.0", fix="check"):
        EpisodeDataset(roots["v3.0"], names={key: own})


def test_rename_a_key_that_gave_up_its_name_is_not_delivered_by_it(roots: dict[str, Path]) -> None:
    with refused("keys", f"'{STATE}'", "'action'", where="v3.0", fix="'action'"):
        EpisodeDataset(roots["v3.0"], names={ACTION: STATE}, keys=[ACTION, STATE])
    with refused("delta_timestamps", f"'{CAM}'", fix=FRONT):
        EpisodeDataset(roots["v3.0"], {CAM: [0.0]}, names={FRONT: CAM})
    assert STATE not in EpisodeDataset(roots["v3.0"], names={ACTION: STATE}).keys


def test_rename_all_errors_of_a_mapping_at_once(roots: dict[str, Path]) -> None:
    names = {
        ACTION: "acton",
        STATE: CAM,
        FRONT: STATE,
        "when": "timestamp",
        "frame_index": REWARD,
        "far": "zzz",
        WRIST: PNG,
        "fine": STATE,
    }
    lacking: dict[str, Any] = {
        WRIST: (8, 8),
        ACTION: (8, 8),
        "dark": (0, 8),
        "grey": 8,
        PNG: (8, 8),
        "good": (4, 4),
    }
    with refused(where="v3.0", fix="mapping") as caught:
        EpisodeDataset(roots["v3.0"], names=names, missing_cameras=lacking)
    errors = caught.value.what.split("; ")
    for error, values in zip(
        errors,
        (
            ["'action'", "'acton'"],
            [f"'{STATE}'", f"'{CAM}'", "video"],
            [f"'{FRONT}'", f"'{STATE}'", "float32", (3,), CAM, PNG],
            ["'when'", "'timestamp'"],
            ["'frame_index'", f"'{REWARD}'"],
            ["'far'", "'zzz'", CAM],
            ["missing_cameras", f"'{WRIST}'", f"'{PNG}'"],
            ["missing_cameras", "'action'"],
            ["missing_cameras['dark']", (0, 8), "(height, width)"],
            ["missing_cameras['grey']", 8],
        ),
        strict=True,
    ):
        assert not absent(error, *values), error
    assert "\n" not in str(caught.value)
    for wrong in (["action"], "action"):
        with refused("names", wrong, fix="names"):
            EpisodeDataset(roots["v3.0"], names=wrong)  # type: ignore[arg-type]


def test_rename_suggests_the_other_direction(roots: dict[str, Path]) -> None:
    with refused(f"'{CAM}'", "'observation.images.other'", where="v3.0", fix="mapping"):
        EpisodeDataset(roots["v3.0"], names={CAM: "observation.images.other"})


def test_rename_a_camera_that_is_there_is_not_absent(roots: dict[str, Path]) -> None:
    with refused("missing_cameras", f"'{CAM}'", where="v3.0"):
        EpisodeDataset(roots["v3.0"], missing_cameras={CAM: (4, 6)})
    # its name is free now
    data = EpisodeDataset(roots["v3.0"], names={FRONT: CAM}, missing_cameras={CAM: (4, 6)})
    assert data[0][CAM].shape == (3, 4, 6)
    assert data[0][FRONT].any()


def test_rename_a_camera_without_files_can_be_absent_not_mapped(tmp_path: Path) -> None:
    write_dataset(copy := tmp_path / "d", Spec(version="v2.1", cameras=(CAM,)))
    edit_json(
        copy / "meta/info.json",
        lambda info: info["features"].update({WRIST: info["features"][CAM]}),
    )
    with refused(f"'{FRONT}'", f"'{WRIST}'", "info.json", where="d"):
        EpisodeDataset(copy, names={FRONT: WRIST})
    data = EpisodeDataset(copy, missing_cameras={WRIST: (4, 6)}, keys=[ACTION, WRIST])
    assert data[0][WRIST].shape == (3, 4, 6)


@pytest.mark.parametrize("window", [None, [-0.1, 0.0]])
def test_rename_missing_cameras_are_black_and_flagged(
    roots: dict[str, Path], window: list[float] | None
) -> None:
    windows = {WRIST: window} if window else {}
    data = EpisodeDataset(
        roots["v3.0"], windows, missing_cameras={WRIST: (4, 6)}, keys=[STATE, CAM]
    )
    assert data.keys == (STATE, CAM, WRIST)
    assert data.video_keys == (CAM,)
    assert data.reach == (0, 0)
    batch = data.batch(np.asarray([0, 2]), np.asarray([1, 3]))
    sample = data[4]
    length = [2] if window else []
    assert batch[WRIST].shape == (2, *length, 3, 4, 6)
    assert sample[WRIST].shape == (*length, 3, 4, 6)
    assert batch[WRIST].dtype == torch.uint8
    assert not batch[WRIST].any()
    assert batch[f"{WRIST}_is_missing"].tolist() == [True, True]
    assert bool(sample[f"{WRIST}_is_missing"])
    assert (f"{WRIST}_is_pad" in batch) == bool(window)
    assert not window or batch[f"{WRIST}_is_pad"].all()
    assert f"{CAM}_is_missing" not in batch
    plain = EpisodeDataset(roots["v3.0"], keys=[STATE, CAM])
    assert all(equal(sample[key], value) for key, value in plain[4].items())
