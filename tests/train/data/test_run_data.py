"""Data of a run: conditions on episodes, normalization, loader, instructions, and the contract."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pytest
import torch

from understudy.config.train import LoaderConfig, TrainConfig
from understudy.policies.settings import PolicySettings
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.data.input_contract import dataset_contract, make_contract
from understudy.train.data.run_data import (
    RunData,
    instructions,
    longest_prompts,
    make_loader,
    make_order,
    open_data,
)
from understudy.train.data.run_normalization import choose_normalization, compute_normalization
from understudy.train.startup_summary import startup_summary
from understudy.train.validation.validation_loss import read_validation_data
from understudy_base import ConfigError, DatasetError, SourceError
from understudy_base.testing.refusals import refused
from understudy_client import Contract
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.validation_data import ValidationData
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import SourceConfig, override
from understudy_tools.testing.edited import edit


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten episodes; `quality` is the id modulo 4, and 6 is missing."""
    root = tmp_path_factory.mktemp("where")
    write_dataset(root / "source", Spec("v3.0", lengths=(6,) * 10, cameras=(), gop=2))
    lines = [f"{episode},{'' if episode == 6 else episode % 4}" for episode in range(10)]
    (root / "meta.csv").write_text("\n".join(["episode_index,quality", *lines]) + "\n")
    edit(root / "source", root / "rated", metadata=str(root / "meta.csv"))
    return root / "rated"


def opened(root: Path, **settings: Any) -> RunData:
    config = tiny_config(root, root)
    return open_data(replace(config, data=replace(config.data, cameras=("none",), **settings)))


def ids(data: RunData) -> set[int]:
    parts = (*data.training, *(part for part in data.validation if part is not None))
    return {int(episode) for part in parts for episode in part.segments[:, 0]}


def test_where_selects_the_episodes_of_a_run(rated: Path) -> None:
    assert ids(opened(rated, where="quality >= 2")) == {2, 3, 7}
    assert ids(opened(rated, where="quality >= 2", episodes=(0, 1, 2, 3))) == {2, 3}
    data = opened(rated, where="quality < 2", val_episodes=(4,))
    assert ids(data) == {0, 1, 4, 5, 8, 9}
    assert any("6 of 10" in note for source in data.sources for note in source.notes)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"where": "quality >= 2", "val_episodes": (4,)}, "episode 4"),
        ({"where": "quality >= 2", "episodes": (0, 1)}, "quality >= 2"),
        ({"where": "qualty >= 2"}, "qualty"),
        ({"where": "quality > 9"}, "none of 10"),
    ],
)
def test_where_refuses_conditions_that_select_nothing(
    settings: dict[str, Any], named: str, rated: Path
) -> None:
    with pytest.raises(DatasetError) as refused:
        opened(rated, **settings)
    assert named in refused.value.what
    assert refused.value.where == str(rated)


# -- the normalization of a new run: its policy chooses between that of the data and that of weights


@dataclass(frozen=True, kw_only=True)
class Chooser(PolicySettings):
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "quantile"
    figures_of_weights: ClassVar[str] = ""
    refuses: bool = False

    def choose_normalization(self, computed: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.refuses:
            raise ConfigError("policy.weights: robot_2")
        return {**computed, "chosen": True}


def test_the_default_mode_is_the_policys(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    opened = open_data(config)
    assert config.data.normalize is None
    assert choose_normalization(config, opened) == compute_normalization(opened, "mean_std")
    other = replace(config, policy=Chooser())
    assert choose_normalization(other, opened) == compute_normalization(opened, "quantile") | {
        "chosen": True
    }
    named = replace(other, data=replace(config.data, normalize="min_max"))
    assert choose_normalization(named, opened) == compute_normalization(opened, "min_max") | {
        "chosen": True
    }


def test_the_resolved_settings_name_the_mode(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path)
    assert config.resolved().data.normalize == "mean_std"
    assert replace(config, policy=Chooser()).resolved().data.normalize == "quantile"
    assert (
        TrainConfig(data=replace(config.data, normalize="min_max")).resolved().data.normalize
        == "min_max"
    )


def test_weights_of_another_robot_stop_the_run(data: Path, tmp_path: Path) -> None:
    config = replace(tiny_config(data, tmp_path), policy=Chooser(refuses=True))
    with refused("robot_2", kind=ConfigError):
        choose_normalization(config, open_data(config))


# -- the loader of a run gives the step batches as it expects them ----------


class Prepared(dict[str, Any]):
    """A batch that the run has prepared; another type would be prepared again."""


def test_batches_keep_their_type(tmp_path: Path) -> None:
    config = replace(
        tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run"), loader=LoaderConfig(1)
    )
    data = open_data(config)
    mesh: Any = SimpleNamespace(
        rank=0, world_size=1, local_world_size=1, device=torch.device("meta"), together=nullcontext
    )
    with make_loader(config, data, data.order(config), mesh, 0, Prepared) as loader:
        batch = next(loader)
    assert type(batch) is Prepared
    images = batch[data.cameras[0]]
    assert (images.shape[1], images.device.type) == (3, "cpu")


def test_a_new_run_warns_of_an_order_that_costs_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    order = make_order(config, data, mesh)
    decoded = []
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


# -- several instructions of an episode in a run: each sample trains on one of them ----------


SEPARATOR = " the "
"""Of "lift the red block" one sample gets "lift", another one "red block"."""


def config_of(data: Path, out: Path, separator: str = SEPARATOR) -> TrainConfig:
    config = tiny_config(data, out, micro_batch_size=2)
    return replace(config, augment=replace(config.augment, task_separator=separator))


def read_all(held: ValidationData | None, size: int) -> list[str]:
    """Texts of all validation frames, read in batches of `size`."""
    assert held is not None
    batches = [
        held.read(slice(low, min(low + size, len(held)))) for low in range(0, len(held), size)
    ]
    return [text for batch in batches for text in batch["task"]]


def test_validation_frames_get_one_instruction_each_in_any_batch(data: Path) -> None:
    config = config_of(data, data.parent / "out")
    opened = open_data(config)
    parts = instructions(opened.training, SEPARATOR)
    texts = read_all(read_validation_data(config, opened), 64)
    assert len(parts) > 2
    assert set(texts) <= parts
    assert len(set(texts)) > 2
    assert read_all(read_validation_data(config, opened), 5) == texts
    joined = read_all(read_validation_data(config_of(data, data.parent / "out", ""), opened), 64)
    assert set(joined) <= set(opened.training[0].catalog.tasks)
    assert all(text in whole for text, whole in zip(texts, joined, strict=True))
    assert max(map(len, longest_prompts(opened.training, SEPARATOR))) == max(map(len, parts))


def test_start_says_how_many_texts_the_separator_divides(data: Path) -> None:
    def lines(separator: str) -> list[str]:
        config = config_of(data, data.parent / "out", separator)
        opened = open_data(config)
        summary = startup_summary(config, opened, opened.order(config))
        return [line for line in summary if line.startswith("augment.task_separator")]

    assert not lines("")
    # "wait" is one instruction
    assert ["2 of 3 task texts" in line for line in lines(SEPARATOR)] == [True]
    assert ["0 of 3 task texts" in line for line in lines(" || ")] == [True]


def test_a_run_trains_on_single_instructions_and_its_contract_has_them(
    data: Path, tmp_path: Path
) -> None:
    """`test_resume.py` resumes such a run on other ranks."""
    whole, joined = (
        config_of(data, tmp_path / name, separator)
        for name, separator in (("w", SEPARATOR), ("j", ""))
    )
    for config in (whole, joined):
        assert run.train(override(config, steps=3, val={"every": 0})) == run.DONE
    assert series(tmp_path / "w") != series(tmp_path / "j")
    contract = Contract.read_folder(tmp_path / "w/policy")
    assert contract is not None
    [facts] = contract.robots.values()
    assert set(facts.tasks) == {*instructions(open_data(whole).training, SEPARATOR), ""}


# -- the contract of a run: images that cannot be read, and outages, which are no fault of an image


WHERE = "episode 0"


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[DatasetError], dict]:
    """Make the contract of a run whose images raise an error."""
    write_dataset(tmp_path / "d", Spec(lengths=(8, 9, 7), gop=3))
    config = tiny_config(tmp_path / "d", tmp_path / "r")
    data = open_data(config)

    def made(error: DatasetError) -> dict:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(EpisodeDataset, "batch", fail)
        return make_contract(config.samples, data)

    return made


def test_an_unreadable_image_leaves_the_appearance_unknown(
    measure: Callable[[DatasetError], dict],
) -> None:
    robots = measure(DatasetError("damaged", where=WHERE, fix="record it again"))["robots"]
    looks = [camera["look"] for facts in robots.values() for camera in facts["cameras"].values()]
    assert looks == ["unknown"]


def test_an_outage_ends_the_start(measure: Callable[[DatasetError], dict]) -> None:
    with refused(where=WHERE, fix="later", kind=SourceError):
        measure(SourceError("no answer", where=WHERE, fix="try later", transient=True))


def test_sources_of_one_robot_state_facts_that_agree(tmp_path: Path) -> None:
    """Two files with the same statements give them to the contract of a run; with other ones they
    give none.
    """
    for name in ("one", "two"):
        root = tiny_dataset(tmp_path / name)
        contract = dataset_contract(str(root))
        (robot,) = contract.robots.values()
        units = replace(robot.action, units=("rad",) * robot.action.width)
        stated = replace(contract, robots={"": replace(robot, action=units)})
        stated.write(root / "meta/contract.json")
    config = tiny_config(tmp_path / "one", tmp_path / "out", val={"every": 0})
    arm = SourceConfig(robot_type="arm", control_mode="joint")
    sources = tuple(replace(arm, root=str(tmp_path / name)) for name in ("one", "two"))
    config = replace(config, data=replace(config.data, root="", sources=sources))

    def stated() -> set[object]:
        robots = make_contract(config.samples, open_data(config))["robots"]
        units = [robot["action"]["units"] for robot in robots.values()]
        return {unit for row in units if row != "unknown" for unit in row}

    assert stated() == {"rad"}
    path = tmp_path / "two/meta/contract.json"
    path.write_text(path.read_text().replace('"rad"', '"deg"'))
    assert stated() == set()
