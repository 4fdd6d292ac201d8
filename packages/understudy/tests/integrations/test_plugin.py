"""The plugin of `lerobot-train`: on a script with LeRobot's functions, and in LeRobot itself where
it is installed.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import understudy as us
from understudy.train.audit import audit_file
from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.integrations.lerobot.plugin import _NEEDED, ORDER_FILE, install
from understudy_data.testing.datasets import Spec, write_dataset

accelerate = pytest.importorskip("accelerate", reason="needs accelerate")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", Spec(lengths=(9, 7, 11, 8), gop=4))
    return tmp_path / "set"


def config(**dataset: Any) -> SimpleNamespace:
    transforms = SimpleNamespace(enable=dataset.pop("transforms", False))
    own = SimpleNamespace(streaming=False, image_transforms=transforms)
    return SimpleNamespace(
        batch_size=4, num_workers=2, steps=9, dataset=SimpleNamespace(**{**vars(own), **dataset})
    )


def script(root: Path, **meta: Any) -> ModuleType:
    """The functions of LeRobot's training script that the plugin replaces."""
    catalog = us.Catalog.open(root)
    about = {
        "video_keys": catalog.camera_keys,
        "depth_keys": [],
        "has_language_columns": False,
        **meta,
    }
    fps = catalog.fps
    deltas = {"action": [0, 1 / fps], catalog.camera_keys[0]: [0.0]}
    dataset = SimpleNamespace(
        root=root, episodes=[0, 2, 3], delta_timestamps=deltas, meta=SimpleNamespace(**about)
    )
    found: Any = ModuleType("lerobot.scripts.lerobot_train")
    found.make_train_eval_datasets = lambda config: (dataset, None)
    found.EpisodeAwareSampler = lambda *args, **kwargs: "their sampler"
    found.compute_sampler_state = lambda *args: {"epoch": 0}
    found.cycle = iter
    found.train = lambda config: None
    return found


def batches(found: Any, step: int = 0, seed: int = 5) -> Iterator[dict[str, Any]]:
    """Call the script's functions as `train` does."""
    dataset, _ = found.make_train_eval_datasets(config())
    sampler = found.EpisodeAwareSampler(0, 1, drop_n_last_frames=1, seed=seed)
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
    assert {
        tensor.dtype for tensor in got[0].values() if isinstance(tensor, torch.Tensor)
    }.isdisjoint({torch.float64})
    assert not {"position", "source"} & got[0].keys()
    seen = torch.cat(
        [torch.stack([b["episode_index"], b["frame_index"]]) for b in got], dim=1
    ).T.tolist()
    wanted = [[e, f] for e, n in ((0, 9), (2, 11), (3, 8)) for f in range(n - 1)]
    assert sorted(seen[: len(wanted)]) == wanted  # an epoch, without the last frame of each episode


def test_log_of_a_training_has_a_line_of_the_plugin(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = script(data)
    install(found)
    caplog.set_level("INFO")
    caplog.clear()  # LeRobot sets up its log after the import
    next(batches(found))
    assert [
        record.levelname for record in caplog.records if record.name.startswith("understudy")
    ] == ["INFO"]


def test_resumed_run_gets_the_next_batches(data: Path) -> None:
    whole = script(data)
    resumed = script(data)
    install(whole)
    install(resumed)
    indices = [next(own)["index"].tolist() for own in [batches(whole)] for _ in range(8)]
    assert [
        next(own)["index"].tolist() for own in [batches(resumed, step=3)] for _ in range(5)
    ] == indices[3:]


def test_order_file_is_written_before_the_first_batch_and_then_played(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def indices(step: int = 0, seed: int = 5) -> list[list[int]]:
        found = script(data)
        install(found)
        return [
            next(own)["index"].tolist()
            for own in [batches(found, step, seed)]
            for _ in range(9 - step)
        ]

    usual = indices()
    file = data.parent / "order.parquet"
    monkeypatch.setenv(ORDER_FILE, str(file))
    assert indices() == usual
    written = file.read_bytes()
    assert indices(step=3, seed=6) == usual[3:]
    assert file.read_bytes() == written
    table = pq.read_table(file)
    index = [
        FRAMES.index(sample)
        for sample in zip(table["episode"].to_pylist(), table["frame"].to_pylist())
    ]
    assert list(chain(*usual)) == index
    table = table.slice(0, 32)
    pq.write_table(pa.table({name: table[name] for name in ("episode", "frame")}), file)
    with refused(8, kind=ConfigError):
        indices()
    monkeypatch.setenv(ORDER_FILE, str(data / "meta" / "info.json"))
    with refused(where="info.json", fix="", kind=DatasetError):
        indices()


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
    make = found.make_train_eval_datasets
    held = SimpleNamespace()
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


@pytest.mark.parametrize(
    "meta", [{"depth_keys": ["observation.depth"]}, {"has_language_columns": True}]
)
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
]
PLUGIN = "--loader.discover_packages_path=understudy_data.integrations.lerobot"
LENGTHS = (9, 7, 11, 8)
FRAMES = [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]
ROW = ("episode", "frame", "samples")


class RealScript:
    """LeRobot's training script in this process; `batches` has the samples (episode, frame) of each
    of its steps.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")
        self._script = pytest.importorskip(
            "lerobot.scripts.lerobot_train", reason="needs lerobot[training]"
        )
        self.folder, self._patch, self.batches = folder, monkeypatch, list[list[tuple[int, int]]]()
        write_dataset(folder / "set", Spec(lengths=LENGTHS, gop=4, foreign=False))
        update = self._script.update_policy
        # restored at the end of the test
        self._own = {name: getattr(self._script, name) for name in _NEEDED}
        for name, function in self._own.items():
            monkeypatch.setattr(self._script, name, function)
        monkeypatch.setattr(self._script, "_understudy", None, raising=False)

        def noted(metrics: Any, policy: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            self.batches.append([FRAMES[index] for index in batch["index"].tolist()])
            return update(metrics, policy, batch, *args, **kwargs)

        monkeypatch.setattr(self._script, "update_policy", noted)

    def run(
        self, out: str, *words: str, plugin: bool = True, order: str = ""
    ) -> list[list[tuple[int, int]]]:
        """Train, and return the samples of the steps of this run."""
        for module in [
            name for name in sys.modules if name.startswith("understudy_data.integrations.lerobot")
        ]:
            self._patch.delitem(sys.modules, module)
        for name, function in self._own.items():
            setattr(self._script, name, function)
        self._script._understudy = None
        places = [f"--dataset.root={self.folder / 'set'}", f"--output_dir={self.folder / out}"]
        self._patch.setattr(sys, "argv", [*TRAIN, *places, *words, *[PLUGIN] * plugin])
        self._patch.setenv(ORDER_FILE, order and str(self.folder / order))
        self.batches.clear()
        self._script.train()
        return self.batches.copy()

    def audit(self, order: str, step: int | str) -> Counter[tuple[int, int]]:
        """Samples of each frame by the account of an order file."""
        _, counts = audit_file(self.folder / order, step, (), ())
        rows = [
            row
            for block in counts.frames()
            for row in zip(*(block[name].tolist() for name in ROW), strict=True)
        ]
        return Counter({(episode, frame): samples for episode, frame, samples in rows if samples})


def test_lerobot_train_reads_our_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of 4 steps, and one that is resumed at 2: the same samples reach LeRobot's step."""
    script = RealScript(tmp_path, monkeypatch)
    whole = script.run("whole", "--steps=4", "--save_freq=4")
    with us.Loader(tmp_path / "set", batch_size=2, seed=3) as order:
        assert whole == [
            [FRAMES[index] for index in batch["index"]] for _, batch in zip(whole, order)
        ]
    cut = script.run("cut", "--steps=2", "--save_freq=2")
    saved = tmp_path / "cut" / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    assert cut + script.run("cut", "--steps=4", "--resume=true", f"--config_path={saved}") == whole


def test_lerobot_train_has_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes its order, another one plays it, and the account of each checkpoint is that of
    its batches.
    """
    script = RealScript(tmp_path, monkeypatch)
    first = script.run("first", "--steps=5", "--save_freq=5", order="order.parquet")
    for step in (2, 5):
        assert script.audit("order.parquet", step) == Counter(list(chain(*first[:step])))
    again = script.run("again", "--steps=3", "--save_freq=3", "--seed=4", order="order.parquet")
    saved = tmp_path / "again" / "checkpoints" / "last" / "pretrained_model" / "train_config.json"
    words = ("--steps=5", "--resume=true", f"--config_path={saved}")
    assert again + script.run("again", *words, order="order.parquet") == first
    order = pa.table({"episode": [3, 0, 1, 1], "frame": [7, 0, 6, 6]})
    pq.write_table(order, tmp_path / "hand.parquet")
    assert script.run("hand", "--steps=2", "--save_freq=2", order="hand.parquet") == [
        [(3, 7), (0, 0)],
        [(1, 6), (1, 6)],
    ]


def test_order_of_lerobots_own_sampler_has_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epochs of 35 frames end with a short batch; the batches are written down by hand, and may
    be played again.
    """
    script = RealScript(tmp_path, monkeypatch)
    words = ("--steps=5", "--save_freq=5", "--batch_size=16")
    theirs = script.run("theirs", *words, plugin=False)
    assert list(map(len, theirs)) == [16, 16, 3, 16, 16]
    rows = [(step, *sample) for step, samples in enumerate(theirs) for sample in samples]
    names = ("step", "episode_index", "frame_index")
    pq.write_table(
        pa.table(dict(zip(names, map(list, zip(*rows)), strict=True))), tmp_path / "hand.parquet"
    )
    for step in (1, 3, 5, "latest"):
        steps = len(theirs) if step == "latest" else int(step)
        assert script.audit("hand.parquet", step) == Counter(list(chain(*theirs[:steps])))
    samples = list(chain(*theirs))
    played = script.run(
        "played", "--steps=4", "--save_freq=4", "--batch_size=16", order="hand.parquet"
    )
    assert list(chain(*played)) == samples[:64]
