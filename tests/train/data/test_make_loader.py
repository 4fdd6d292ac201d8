"""The loader of a run gives the step batches as it expects them, on the host and on a device."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from support.runs import tiny_config, tiny_dataset
from understudy.config.train import LoaderConfig
from understudy.errors import ConfigError
from understudy.train.data.run_data import make_loader, make_order, open_data


class Prepared(dict[str, Any]):
    """A batch that the run has prepared; another type would be prepared again."""


@pytest.mark.parametrize("colors", ["rgb", "yuv"])
def test_batches_keep_their_type_and_their_keys_of_the_host(colors: Literal["rgb", "yuv"], tmp_path: Path) -> None:
    config = replace(
        tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run"), loader=LoaderConfig(1, colors=colors)
    )
    data = open_data(config)
    mesh: Any = SimpleNamespace(
        rank=0, world_size=1, local_world_size=1, device=torch.device("meta"), together=nullcontext
    )
    with make_loader(config, data, data.order(config), mesh, 0, Prepared) as loader:
        batch = next(loader)
    assert type(batch) is Prepared
    assert {batch[key].device.type for key in ("position", "source")} == {"cpu"}
    images = batch[data.cameras[0]]
    assert (images.shape[1], images.device.type) == (3, "meta" if colors == "yuv" else "cpu")


def test_a_new_run_warns_of_an_order_that_costs_much(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run")
    data = open_data(config)
    mesh: Any = SimpleNamespace(rank=0, world_size=1, local_world_size=1)
    order = make_order(config, data, mesh)
    assert not caplog.records
    assert order.spec.sources[0].clip == 1  # it fits the memory
    for source in data.training:
        source.__dict__["gop"] = 100
    least = 0
    while True:  # the least memory of a batch
        least += 50_000
        small = replace(config, loader=LoaderConfig(1, memory=str(least)))
        try:
            make_order(small, data, mesh)
        except ConfigError:
            continue
        break
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "memory=" in caplog.text


def test_a_decoded_cache_is_in_the_folder_of_the_data_and_decodes_once(tmp_path: Path) -> None:
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run")
    config = replace(
        config,
        loader=LoaderConfig(1, decoded_cache=True),
        data=replace(config.data, cache=str(tmp_path / "cache"), cache_size="1GB"),
    )
    data = open_data(config)
    mesh: Any = SimpleNamespace(
        rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"), together=nullcontext
    )
    order, decoded = make_order(config, data, mesh), []
    epoch = -(-order.spec.sources[0].frames // order.batch_size)
    for steps in (epoch, 1):
        with make_loader(config, data, order, mesh, 0, Prepared) as loader:
            for _ in range(steps):
                next(loader)
            loader.close()
            decoded.append(loader.timings.frames)
    assert decoded[0] > 0
    assert decoded[1] == 0
    assert list((tmp_path / "cache" / "decoded").rglob("0-*"))
    config = replace(config, data=replace(config.data, cache_size="1KB"))
    with pytest.raises(ConfigError, match=r"data\.cache_size"):
        make_loader(config, data, order, mesh, 0, Prepared)
    assert replace(config, loader=LoaderConfig(colors="yuv", decoded_cache=True)).problems()
