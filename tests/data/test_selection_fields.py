"""Each field of a selection changes what every way into a dataset selects: keywords of a dataset
and of a loader, settings of a run and of a view, and `edit`.

The fields are those of `SelectionFields`: a new one fails here until all of them have it, and until
it has a value in `VALUES`.
"""

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import understudy as us
from understudy.testing.runs import tiny_config
from understudy.train.data.run_data import open_data
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.selection_fields import DEFAULTS, KINDS, SelectionOptions
from understudy_data.datasets.selection.select import Selection
from understudy_data.testing.caches import own_cache
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.weights import write_weights
from understudy_kit import SelectionConfig, main
from understudy_tools.cli.edit import EditConfig

LENGTHS = (6, 9, 4, 8, 12, 7)
WINDOW = {"action": [0.0, 0.1, 0.2]}
"""That of the run's chunk."""
VALUES: dict[str, Any] = {
    "episodes": (0, 2, 4),
    "exclude_episodes": (1,),
    "where": "length > 6",
    "keep_ranges": "keep.json",
    "keep_rule": "start",
    "drop_n_first_frames": 2,
    "drop_n_last_frames": 3,
    "frame_weights": "weights.parquet",
    "frame_weights_in": "loss",
}
"""Field -> a value that changes the selection."""
BESIDE = {
    "keep_rule": {"keep_ranges": "keep.json"},
    "frame_weights_in": {"frame_weights": "weights.parquet"},
}
"""Field -> those without which it has no effect."""
NOT_OF_EDIT = {"keep_rule", "frame_weights", "frame_weights_in"}
"""Fields without a meaning for the frames that `edit` writes: each keep-range is an episode."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, with keep.json and weights.parquet beside it."""
    folder = tmp_path_factory.mktemp("fields")
    write_dataset(folder / "set", Spec(lengths=LENGTHS, cameras=()))
    ranges = {str(episode): [[1, 4]] for episode in range(len(LENGTHS))}
    (folder / "keep.json").write_text(json.dumps(ranges))
    weights: dict[tuple[int, int], float] = {}
    for episode, length in enumerate(LENGTHS):
        weights |= {(episode, frame): (1.0, 2.0, 0.0)[frame % 3] for frame in range(length)}
    write_weights(folder / "weights.parquet", weights)
    return folder / "set"


def options_of(name: str, root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options without and with a field; files are beside the dataset."""
    options = {**BESIDE.get(name, {}), name: VALUES[name]}
    for key, value in options.items():
        if key in ("keep_ranges", "frame_weights"):
            options[key] = str(root.parent / value)
    return {key: value for key, value in options.items() if key != name}, options


def frames_of(data: Any) -> list[Any]:
    """What a dataset selects: the samples of an epoch in stored order, and their loss weights."""
    weights = data.frame_weights
    digest = None if weights is None else weights.digest
    return [data.epoch_segments.tolist(), data.window_stops.tolist(), digest]


def of_dataset(root: Path, options: dict[str, Any]) -> list[Any]:
    return frames_of(us.EpisodeDataset(root, WINDOW, **options))


def of_loader(root: Path, options: dict[str, Any]) -> list[Any]:
    """The samples of an epoch, ascending, and their loss weights."""
    samples = []
    segments = us.EpisodeDataset(root, WINDOW, **options).epoch_segments
    with us.Loader(root, delta_timestamps=WINDOW, batch_size=1, num_threads=1, **options) as loader:
        for _ in range(int((segments[:, 2] - segments[:, 1]).sum())):
            batch = next(loader)
            weight = batch["loss_weight"].tolist() if "loss_weight" in batch else [1.0]
            padded = batch["action_is_pad"].tolist()
            samples.append(
                [batch["episode_index"].tolist(), batch["frame_index"].tolist(), weight, padded]
            )
    return sorted(samples)


def of_run(root: Path, options: dict[str, Any]) -> list[Any]:
    config = tiny_config(root, root.parent / "run")
    data = replace(config.data, cameras=("none",), val_fraction=0.0, **options)
    return frames_of(open_data(replace(config, data=data)).training[0])


def of_view(root: Path, options: dict[str, Any]) -> list[Any]:
    words = [str(root), "view"]
    for key, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        words += ["--" + key.replace("_", "-"), *map(str, values)]
    if not options:
        return frames_of(EpisodeArrays(root, WINDOW))
    assert main(["select", *words]) == 0
    return frames_of(EpisodeArrays(f"{root}#view", WINDOW))


def of_edit(root: Path, options: dict[str, Any]) -> list[Any]:
    out = root.parent / f"out-{len(list(root.parent.iterdir()))}"
    words = [str(root), str(out)]
    for key, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        words += ["--" + key.replace("_", "-"), *map(str, values)]
    assert main(["edit", *words, "--workers", "1"]) == 0
    written = us.EpisodeDataset(out, keys=["action"])
    actions = [written[number]["action"].tolist() for number in range(len(written))]
    return [written.segments.tolist(), actions]


WAYS = {
    "dataset": of_dataset,
    "loader": of_loader,
    "run": of_run,
    "view": of_view,
    "edit": of_edit,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_every_way_selects_by_every_field(name: str, way: str, root: Path) -> None:
    if way == "edit" and name in NOT_OF_EDIT:
        assert name not in {item.name for item in fields(EditConfig)}
        return
    without, with_field = options_of(name, root)
    assert WAYS[way](root, with_field) != WAYS[way](root, without)


@pytest.mark.parametrize("way", ["run", "view"])
@pytest.mark.parametrize("name", KINDS)
def test_every_way_selects_as_the_dataset_does(name: str, way: str, root: Path) -> None:
    _, options = options_of(name, root)
    expected = of_dataset(root, options)
    assert WAYS[way](root, options) == expected


def test_keywords_and_settings_have_the_fields() -> None:
    settings = {item.name: item.default for item in fields(SelectionConfig)}
    assert VALUES.keys() == KINDS.keys(), "give each field a value in VALUES"
    assert SelectionOptions.__annotations__.keys() == KINDS.keys()
    assert settings.keys() >= KINDS.keys()
    for name, default in DEFAULTS.items():
        assert settings[name] == default or not (settings[name] or default)


@pytest.mark.parametrize("name", [name for name in VALUES if isinstance(VALUES[name], int)])
@pytest.mark.parametrize("wrong", [-1, True, "3", 2.5])
def test_a_number_of_another_kind_is_refused(name: str, wrong: Any, root: Path) -> None:
    with refused(name):
        us.EpisodeDataset(root, **{name: wrong})


@pytest.mark.parametrize("options", [{"episodes": []}, {"episodes": np.array([], np.int64)}])
def test_a_selection_of_nothing_beside_a_view_is_no_selection_of_all(
    options: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "set")
    assert main(["select", str(tmp_path / "set"), "some", "--episodes", "0", "2", "4"]) == 0
    for address in (root, f"{tmp_path / 'set'}#some"):
        with pytest.raises(us.DatasetError):
            us.EpisodeDataset(address, **options)


def test_validation_episodes_without_a_frame_are_named(root: Path) -> None:
    """A run validates on the others alone."""
    config = tiny_config(root, root.parent / "run")
    ranges = root.parent / "few.json"
    ranges.write_text(json.dumps({"0": [[0, 5]], "1": [[0, 5]]}))
    data = replace(config.data, cameras=("none",), val_episodes=(1, 2), keep_ranges=str(ranges))
    [source] = open_data(replace(config, data=data)).sources
    assert source.validation is not None
    assert source.validation.episodes.tolist() == [1]
    [note] = [note for note in source.notes if "val_episodes" in note]
    assert note.partition("val_episodes ")[2].startswith("2")


def test_settings_without_a_value_select_all() -> None:
    assert Selection.of(SelectionConfig()) == Selection()


@pytest.mark.parametrize("name", KINDS)
def test_the_shared_table_of_a_selection_has_its_fields_in_its_key(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that the key lacks gives the frames of one value for another."""
    without, options = options_of(name, root)
    own = of_dataset(root, options)
    own_cache(tmp_path, monkeypatch)
    of_dataset(root, without)
    assert of_dataset(root, options) == own
