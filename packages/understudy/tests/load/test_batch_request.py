"""The two-line API: paths, options and batch sizes of `Loader` and `EpisodeStream`."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Unpack

import pytest

import understudy as us
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.selection_fields import SelectionOptions
from understudy_data.datasets.selection.select import Selection
from understudy_data.load.batch_request import (
    BatchOptions,
    BatchRequest,
    DatasetOptions,
    ReadOptions,
)
from understudy_data.testing.batches import all_same, least_memory
from understudy_data.testing.datasets import Spec, write_dataset

BATCH = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("request") / "first"
    write_dataset(path, Spec(lengths=(11, 7, 9), gop=4))
    write_dataset(path.with_name("second"), Spec(lengths=(6, 8), gop=4))
    return path


def take(loader: us.Loader, count: int = 3) -> list[dict[str, Any]]:
    with loader:
        return [next(loader) for _ in range(count)]


def test_loader_opens_a_path_a_catalog_or_a_dataset(root: Path) -> None:
    windows = {"action": [0.0, 0.1]}
    data = us.EpisodeDataset(root, delta_timestamps=windows)
    expected = take(us.Loader(data, batch_size=BATCH, seed=3))
    assert expected[0]["action"].shape[:2] == (BATCH, 2)
    for given in (str(root), root, Catalog.open(root), [root]):
        assert all_same(
            take(us.Loader(given, batch_size=BATCH, seed=3, delta_timestamps=windows)), expected
        )
    assert all_same(
        take(
            us.Loader(
                root,
                order=us.Order.from_datasets(data, batch_size=BATCH, seed=3),
                delta_timestamps=windows,
            )
        ),
        expected,
    )


def test_loader_mixes_datasets_by_weights(root: Path) -> None:
    paths = [root, us.EpisodeDataset(root.with_name("second"))]
    with us.Loader(paths, batch_size=BATCH, seed=0, weights=[1, 3]) as loader:
        assert sum(next(loader)["source"].sum().item() for _ in range(8)) == 3 * BATCH * 8 // 4
    with us.Loader(paths, batch_size=BATCH, weights={"first": 1, "second": 1}) as loader:
        assert loader.order.seed == 0


def test_loader_passes_its_own_options_on(root: Path) -> None:
    with us.Loader(
        root, batch_size=BATCH, rank=1, world_size=2, image_size=(16, 24), position=8
    ) as loader:
        batch = next(loader)
    assert batch["position"].tolist() == [10, 11]
    assert batch["observation.images.top"].shape == (2, 3, 16, 24)


@pytest.mark.parametrize("make", [us.Loader, us.EpisodeStream])
@pytest.mark.parametrize("position", [-1, 1.5, True, "x", None, float("nan"), 2**62, 10**400])
def test_position_that_is_no_whole_number_is_refused(make: Any, position: Any, root: Path) -> None:
    with refused("position", kind=ValueError):
        make(root, batch_size=BATCH, position=position)


def test_loader_takes_windows_within_a_tolerance(root: Path) -> None:
    exact, near = ({"action": [0, seconds]} for seconds in (0.1, 0.099))
    with us.Loader(root, batch_size=BATCH, delta_timestamps=exact) as loader:
        expected = next(loader)["action"]
    with us.Loader(root, batch_size=BATCH, delta_timestamps=near, tolerance_s=2e-3) as loader:
        assert next(loader)["action"].equal(expected)


@pytest.mark.parametrize("make", [us.Loader, us.EpisodeStream])
def test_unknown_options_are_refused(root: Path, make: Any) -> None:
    for given in (root, us.EpisodeDataset(root)):
        with refused(["color"], kind=TypeError):
            make(given, batch_size=BATCH, color="red")
    with refused(["keys"], "EpisodeDataset(...)", kind=TypeError):
        make(us.EpisodeDataset(root), batch_size=BATCH, keys=["action"])
    with refused(["memroy"], "'memory'", kind=TypeError):
        make(root, batch_size=BATCH, memroy="1GB")
    with refused(["image_transforms"], kind=TypeError):  # which no batch would get
        make(root, batch_size=BATCH, image_transforms=lambda images: images)


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ({"num_workers": 4}, "num_threads"),
        ({"episode_pool_size": 8}, "frames_in_flight"),
        ({"shuffle": True}, "seed"),
        ({"generator": None}, "seed"),
        ({"iterable_shuffle": True}, "seed"),
        ({"pin_memory": True}, "pin=True"),
    ],
)
def test_options_of_a_torch_loader_are_refused_with_ours(
    root: Path, option: dict[str, Any], ours: str
) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(option))}: .*{ours}"):
        us.Loader(root, batch_size=BATCH, **option)


def test_every_option_is_in_the_signature() -> None:
    loader, stream, data = (
        dict(inspect.signature(cls).parameters)
        for cls in (us.Loader, us.EpisodeStream, us.EpisodeDataset)
    )
    assert set(loader) - set(stream) == {"num_threads", "pin", "device", "host_keys"}
    assert loader["options"].annotation == stream["options"].annotation == Unpack[ReadOptions]
    request = {field.name: field.type for field in fields(BatchRequest)}
    shared = BatchOptions.__annotations__
    assert shared.keys() ^ request.keys() == {"datasets", "batch_size", "seed", "weights"}
    found = ("order", "rank", "world_size")  # where they are not given
    assert {name: shared[name] for name in request.keys() & shared.keys() - {*found}} == {
        name: kind for name, kind in request.items() if name in shared and name not in found
    }
    typed = DatasetOptions.__annotations__
    selected = set(SelectionOptions.__annotations__)
    assert selected == {field.name for field in fields(Selection)}
    assert typed.keys() == data.keys() - {"root", "image_transforms", "selection"} | selected
    own = typed.keys() - selected
    assert {name: typed[name] for name in own} == {name: data[name].annotation for name in own}
    documented = " ".join(re.findall(r"^ {4,8}([\w*, ]+): ", us.Loader.__doc__ or "", re.MULTILINE))
    assert {*loader, *shared} <= set(re.findall(r"\w+", documented))


def test_choose_order_has_the_options_of_an_order() -> None:
    choose, order = (
        dict(inspect.signature(one).parameters) for one in (us.choose_order, us.Order.from_datasets)
    )
    del order["sources"]
    assert {name: choose[name] for name in order} == order
    others = {
        "datasets",
        "memory",
        "world_size",
        "num_threads",
        "workers",
        "image_size",
        "decoded_cache",
    }
    assert set(choose) - set(order) == others


@pytest.mark.parametrize("given", [7, None, b"bytes", {"a": 1}, [], [7]])
def test_datasets_of_other_types_are_refused(given: Any) -> None:
    with refused("dataset", kind=ValueError):
        us.Loader(given, batch_size=BATCH)


def test_loader_chooses_the_order_for_its_memory(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", Spec(lengths=(60,) * 24, gop=30))
    data = us.EpisodeDataset(tmp_path / "data", frame_cache_bytes=0)
    tight = (
        least_memory(data, order=us.Order.from_datasets(data, batch_size=4, mode="uniform"))
        + 3_000_000
    )
    chosen = us.choose_order(data, memory=tight, num_threads=2, batch_size=4, seed=1)
    assert chosen.order.spec.sources[0].lanes > 1
    with us.Loader(data, batch_size=4, seed=1, num_threads=2, memory=tight) as loader:
        assert loader.order.spec == chosen.order.spec
    with us.Loader(data, batch_size=4, seed=1, num_threads=2) as loader:
        assert loader.order.spec.sources[0].lanes == loader.order.spec.sources[0].clip == 1
        assert loader.plan.keeps_decoded == (True,)


def test_every_public_name_is_imported_on_first_use() -> None:
    assert {
        "Loader",
        "Order",
        "TrainConfig",
        "ConfigError",
        "UnderstudyError",
        "choose_order",
    } <= set(us.__all__)
    assert dir(us) == us.__all__ == sorted(us.__all__)
    assert all(getattr(us, name) is not None for name in us.__all__)
    with pytest.raises(AttributeError, match="Laoder"):
        assert us.Laoder  # type: ignore[attr-defined]
    assert issubclass(us.ConfigError, us.UnderstudyError)
