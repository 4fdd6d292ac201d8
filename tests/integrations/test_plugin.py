"""The plugin of `lerobot-train`: on a script with LeRobot's functions, and in LeRobot itself where it is installed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import understudy as us
from support.datasets import Spec, write_dataset
from understudy.errors import ConfigError
from understudy.integrations.lerobot.plugin import install

accelerate = pytest.importorskip("accelerate", reason="needs accelerate")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", Spec(lengths=(9, 7, 11, 8), gop=4))
    return tmp_path / "set"


def config(**dataset: Any) -> SimpleNamespace:
    transforms = SimpleNamespace(enable=dataset.pop("transforms", False))
    own = SimpleNamespace(streaming=False, image_transforms=transforms)
    return SimpleNamespace(batch_size=4, num_workers=2, dataset=SimpleNamespace(**{**vars(own), **dataset}))


def script(root: Path, **meta: Any) -> ModuleType:
    """The functions of LeRobot's training script that the plugin replaces."""
    catalog = us.Catalog.open(root)
    about = {"video_keys": catalog.camera_keys, "depth_keys": [], "has_language_columns": False, **meta}
    fps = catalog.fps
    deltas = {"action": [0, 1 / fps], catalog.camera_keys[0]: [0.0]}
    dataset = SimpleNamespace(root=root, episodes=[0, 2, 3], delta_timestamps=deltas, meta=SimpleNamespace(**about))
    found = ModuleType("lerobot.scripts.lerobot_train")
    found.make_train_eval_datasets = lambda config: (dataset, None)  # type: ignore[attr-defined]
    found.EpisodeAwareSampler = lambda *args, **kwargs: "their sampler"  # type: ignore[attr-defined]
    found.compute_sampler_state = lambda *args: {"epoch": 0}  # type: ignore[attr-defined]
    found.cycle = iter  # type: ignore[attr-defined]
    found.train = lambda config: None  # type: ignore[attr-defined]
    return found


def batches(found: Any, step: int = 0) -> Iterator[dict[str, Any]]:
    """Call the script's functions as `train` does."""
    dataset, _ = found.make_train_eval_datasets(config())
    sampler = found.EpisodeAwareSampler(0, 1, drop_n_last_frames=1, seed=5)
    assert sampler == "their sampler"
    if step:
        found.compute_sampler_state(step, 25, 4, 1)
    return iter(found.cycle(SimpleNamespace(dataset=dataset)))


def test_batches_are_ours_in_the_form_of_theirs(data: Path) -> None:
    found = script(data)
    install(found)
    install(found)  # of no further effect
    got = [next(own) for own in [batches(found)] for _ in range(9)]
    camera = us.Catalog.open(data).camera_keys[0]
    assert got[0][camera].shape[:2] == (4, 3)
    assert got[0][camera].dtype == torch.uint8
    assert got[0]["action"].shape[:2] == (4, 2)
    assert {tensor.dtype for tensor in got[0].values() if isinstance(tensor, torch.Tensor)}.isdisjoint({torch.float64})
    assert not {"position", "source"} & got[0].keys()
    seen = torch.cat([torch.stack([b["episode_index"], b["frame_index"]]) for b in got], dim=1).T.tolist()
    wanted = [[e, f] for e, n in ((0, 9), (2, 11), (3, 8)) for f in range(n - 1)]
    assert sorted(seen[: len(wanted)]) == wanted  # an epoch, without the last frame of each episode


def test_log_of_a_training_has_a_line_of_the_plugin(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = script(data)
    install(found)
    caplog.set_level("INFO")
    caplog.clear()  # LeRobot sets up its log after the import
    next(batches(found))
    assert [record.levelname for record in caplog.records if record.name.startswith("understudy")] == ["INFO"]


def test_resumed_run_gets_the_next_batches(data: Path) -> None:
    whole, resumed = script(data), script(data)
    install(whole)
    install(resumed)
    indices = [next(own)["index"].tolist() for own in [batches(whole)] for _ in range(8)]
    assert [next(own)["index"].tolist() for own in [batches(resumed, step=3)] for _ in range(5)] == indices[3:]


def test_other_loaders_of_the_script_stay(data: Path) -> None:
    found: Any = script(data)
    install(found)
    batches(found)
    assert list(found.cycle([1, 2])) == [1, 2]


def test_wrapped_dataset_is_refused(data: Path) -> None:
    found: Any = script(data)
    install(found)
    dataset, _ = found.make_train_eval_datasets(config())
    wrapped = SimpleNamespace(dataset=torch.utils.data.Subset(dataset, [0]))
    for loader in (wrapped, iter([1, 2])):
        with pytest.raises(ConfigError) as error:
            found.cycle(loader)
        assert ("Subset" if loader is wrapped else "list_iterator") in str(error.value)


def test_evaluation_loader_stays(data: Path) -> None:
    found: Any = script(data)
    make, held = found.make_train_eval_datasets, SimpleNamespace()
    found.make_train_eval_datasets = lambda config: (make(config)[0], held)
    install(found)
    found.make_train_eval_datasets(config())
    with pytest.raises(TypeError):  # it has no batches: LeRobot's own function is called
        found.cycle(SimpleNamespace(dataset=held))


@pytest.mark.parametrize("setting", [{"streaming": True}, {"transforms": True}])
def test_settings_that_would_be_ignored_are_refused(data: Path, setting: dict[str, bool]) -> None:
    found: Any = script(data)
    install(found)
    with pytest.raises(ConfigError):
        found.make_train_eval_datasets(config(**setting))


@pytest.mark.parametrize("meta", [{"depth_keys": ["observation.depth"]}, {"has_language_columns": True}])
def test_datasets_that_would_differ_are_refused(data: Path, meta: dict[str, Any]) -> None:
    found: Any = script(data, **meta)
    install(found)
    with pytest.raises(ConfigError):
        found.make_train_eval_datasets(config())


def test_other_release_is_named(data: Path) -> None:
    found = script(data)
    del found.cycle
    with pytest.raises(ImportError) as caught:
        install(found)
    assert "cycle" in str(caught.value)
    assert not hasattr(found, "_understudy")


TRAIN = [
    "lerobot-train",
    "--policy.type=act",
    "--policy.push_to_hub=false",
    "--policy.device=cpu",
    "--policy.chunk_size=4",
    "--policy.n_action_steps=4",
    "--policy.dim_model=32",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=32",
    "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1",
    "--policy.pretrained_backbone_weights=null",
    "--dataset.repo_id=me/set",
    "--dataset.use_imagenet_stats=false",
    "--batch_size=2",
    "--num_workers=0",
    "--seed=3",
    "--log_freq=1",
    "--loader.discover_packages_path=understudy.integrations.lerobot",
]


def test_lerobot_train_reads_our_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of 4 steps, and one that is resumed at 2: the same samples reach LeRobot's step."""
    pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")
    lerobot_train = pytest.importorskip("lerobot.scripts.lerobot_train", reason="needs lerobot[training]")
    write_dataset(tmp_path / "set", Spec(lengths=(9, 7, 11, 8), gop=4, foreign=False))
    seen: list[list[int]] = []
    update = lerobot_train.update_policy

    def noted(metrics: Any, policy: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(batch["index"].tolist())
        return update(metrics, policy, batch, *args, **kwargs)

    names = ("make_train_eval_datasets", "EpisodeAwareSampler", "compute_sampler_state", "cycle")
    for name in names:  # restored at the end of the test
        monkeypatch.setattr(lerobot_train, name, getattr(lerobot_train, name))
    monkeypatch.setattr(lerobot_train, "update_policy", noted)
    monkeypatch.setattr(lerobot_train, "_understudy", None, raising=False)
    for module in [name for name in sys.modules if name.startswith("understudy.integrations.lerobot")]:
        monkeypatch.delitem(sys.modules, module)

    def call(out: str, *words: str) -> None:
        root = f"--dataset.root={tmp_path / 'set'}"
        monkeypatch.setattr(sys, "argv", [*TRAIN, root, f"--output_dir={tmp_path / out}", *words])
        lerobot_train._understudy = None
        lerobot_train.train()

    call("whole", "--steps=4", "--save_freq=4")
    whole = seen.copy()
    order = us.Loader(tmp_path / "set", batch_size=2, seed=3)
    assert whole == [next(order)["index"].tolist() for _ in range(4)]
    order.close()
    seen.clear()
    call("cut", "--steps=2", "--save_freq=2")
    saved = tmp_path / "cut" / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    call("cut", "--steps=4", "--resume=true", f"--config_path={saved}")
    assert seen == whole
