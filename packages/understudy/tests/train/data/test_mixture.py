"""The sources of a run: listed in a file, all errors reported at once, opened, split and
recognised.
"""

import json
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.config.train import DataConfig, TrainConfig
from understudy.policies.common.settings import TaskMode
from understudy.testing.mixtures import NAMES, TOP, WRIST, mixed, tiny_sources
from understudy.testing.runs import tiny_config
from understudy.train.data.run_data import RunData, dataset_fingerprint, file_digests, open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy.train.data.same_content import describe_copies, describe_rates
from understudy_base import ConfigError, DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import SourceConfig, complete, dump_yaml, load
from understudy_kit.cli import main


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceConfig, ...]:
    return tiny_sources(tmp_path_factory.mktemp("mixture"))


def opened(*sources: SourceConfig, **data: Any) -> RunData:
    config = mixed(sources, Path("nowhere"))
    return open_data(replace(config, data=replace(config.data, **data)))


# -- settings --------------------------------------------------------------------------------------


def test_mixture_settings_read_back_equal(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    full = replace(
        sources[0],
        val_episodes=(1, 2),
        delta_action_dims=(0, 1),
        exclude_episodes=(4,),
        keep_rule="start",
        stats="s",
    )
    config = mixed(
        (full, *sources[1:]), tmp_path / "r", mode={"policy": 2.0, "inverse_dynamics": 1.0}
    )
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    assert load(TrainConfig, tmp_path / "c.yaml") == config


def test_source_errors_are_reported_with_paths(tmp_path: Path) -> None:
    (tmp_path / "types.yaml").write_text(
        "mode: jont\n"
        "data:\n"
        "  sources:\n"
        "  - {root: a, weight: -1}\n"
        "  - {root: b, wieght: 1, cameras: {observation.images.top: 3}}\n"
        "  - {root: c, drop_n_first_frames: -2, keep_rule: ends}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(TrainConfig, tmp_path / "types.yaml")
    text = str(caught.value)
    for told in (
        "data.sources.0.weight: input should be greater than 0, not -1",
        "data.sources.1.wieght: unknown name; did you mean 'weight'?",
        "data.sources.1.cameras: must be pairs as in `{NAME: TEXT, OTHER: TEXT}`, not 3",
        "data.sources.2.drop_n_first_frames: ",
        "data.sources.2.keep_rule: ",
        "mode: must be one of 'policy', 'forward_dynamics', 'inverse_dynamics', 'joint', or "
        "weights as in ",
    ):
        assert told in text
    (tmp_path / "rules.yaml").write_text(
        "mode: {policy: 0}\n"
        "data:\n"
        "  root: one\n"
        "  drop_n_last_frames: 2\n"
        "  cache_size: lots\n"
        "  sources:\n"
        "  - {root: a, weight: 1, episodes: [1, 2], val_episodes: [3], exclude_episodes: [2]}\n"
        "  - {root: b, name: x, state: '', delta_action_dims: [1]}\n"
        "  - {name: x, weight: 1, action: ''}\n"
    )
    with pytest.raises(ConfigError) as caught:
        complete(load(TrainConfig, tmp_path / "rules.yaml"))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(line.split()[0].rstrip(":") for line in lines) == sorted(
        [
            "data.cache_size",
            "data.root",
            "data.drop_n_last_frames",
            "data.sources.0.exclude_episodes",
            "data.sources.0.val_episodes",
            "data.sources.1.delta_action_dims",
            "data.sources.2.root",
            "data.sources.2.name",
            "data.sources.2.action",
            "data.sources.1.weight",
            "mode",
        ]
    )


def test_source_names_are_unique() -> None:
    def names(*sources: SourceConfig) -> tuple[str, ...]:
        return DataConfig(sources=sources).names()

    assert names(
        SourceConfig("x/pick"), SourceConfig("y/pick/"), SourceConfig("https://h/z/pick")
    ) == (
        "pick",
        "pick#2",
        "pick#3",
    )
    assert names(SourceConfig("x/pick"), SourceConfig("y/other", name="pick")) == ("pick#2", "pick")
    assert DataConfig(root="x/pick").names() == ("pick",)
    resolved = TrainConfig(
        data=DataConfig(sources=(SourceConfig("x/a"), SourceConfig("y/a")))
    ).resolved()
    assert [source.name for source in resolved.data.sources] == ["a", "a#2"]
    assert resolved.resolved() == resolved


def test_mode_weights_match_the_policy_modes() -> None:
    assert tuple(TrainConfig().modes.weights()) == TaskMode.ALL
    assert TrainConfig().modes.weights() == {
        "policy": 1,
        "forward_dynamics": 0,
        "inverse_dynamics": 0,
    }
    assert set(TrainConfig(mode="joint").modes.weights().values()) == {1 / 3}
    shares = TrainConfig(mode={"inverse_dynamics": 3.0, "policy": 1.0}).modes.weights()
    assert shares == {"policy": 0.25, "forward_dynamics": 0, "inverse_dynamics": 0.75}
    assert [
        TrainConfig(mode=mode).modes.learn_dynamics()
        for mode in ("policy", "forward_dynamics", "joint")
    ] == [
        False,
        True,
        True,
    ]
    assert not TrainConfig(mode={"policy": 1.0, "inverse_dynamics": 0.0}).modes.learn_dynamics()


def test_command_line_takes_a_file_with_sources(
    sources: tuple[SourceConfig, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flags replace settings of the file and leave its sources; they do not clutter the help."""
    (tmp_path / "mix.yaml").write_text(dump_yaml(mixed(sources, tmp_path / "r")))
    config = main.read_settings("train", [str(tmp_path / "mix.yaml"), "--steps", "2"])
    assert (
        config.steps,
        tuple(source.name or Path(source.root).name for source in config.data.sources),
    ) == (2, NAMES)
    assert config.data.sources[2].cameras == {TOP: "observation.images.cam_0"}
    assert main.main(["train", str(tmp_path / "mix.yaml"), "--data.root", "d"]) == 2
    assert "data.root: d: describes a single dataset" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main.main(["train", "--help"])
    text = capsys.readouterr().out
    assert "--data.val-episodes" in text
    assert "--data.sources" not in text
    assert "keep_rule" in text, "a setting of a source"


# -- opening ---------------------------------------------------------------------------------------


def test_open_data_maps_keys_per_source(sources: tuple[SourceConfig, ...]) -> None:
    data = opened(*sources)
    assert (data.names, data.weights, data.cameras) == (NAMES, (3, 2, 1), (TOP, WRIST))
    assert data.heads == ("arm::joint", "hand::joint")
    assert data.head_of_source.tolist() == [0, 1, 0]
    assert data.size == (16, 16)
    for part in data.training:
        # seconds at its own rate
        assert (part.windows["action"], part.reach_of("action")) == (3, (0, 2))
        assert {"action", "observation.state", TOP, WRIST} <= set(
            part.sample(*part.segments[0, :2].tolist())
        )
    with Loader(
        data.training,
        order=data.order(mixed(sources, Path("r"))),
        num_threads=1,
        image_size=data.size,
    ) as loader:
        batch = next(loader)
    assert batch[TOP].shape == batch[WRIST].shape == (6, 3, 16, 16)
    config = data.policy_config(mixed(sources, Path("r")))
    assert (config.action_dim, config.state_dim, config.cameras) == (4, 5, (TOP, WRIST))
    only = opened(*sources, cameras=(WRIST,))
    assert only.cameras == (WRIST,)
    assert only.size is None  # one source has it: nothing differs
    assert only.training[0].missing_cameras == {WRIST: (32, 32)}


def test_open_data_maps_one_key_to_two(sources: tuple[SourceConfig, ...]) -> None:
    """A robot without a state of its own, given its last command; in seconds of its own rate."""
    part = opened(replace(sources[0], state="action")).training[0]
    sample = part.sample(*part.segments[0, :2].tolist())
    assert torch.equal(sample["observation.state"], sample["action"][0])


def test_open_data_keeps_images_of_one_size(tmp_path: Path) -> None:
    data = opened(*tiny_sources(tmp_path, small_pictures=False))
    assert data.size is None
    assert data.training[0].missing_cameras == {WRIST: (64, 64)}


def test_shares_without_weights_follow_frames(sources: tuple[SourceConfig, ...]) -> None:
    data = opened(*(replace(source, weight=None) for source in sources))
    assert data.weights == tuple(map(len, data.training))
    slots = data.order(mixed(sources, Path("r"))).spec.schedule[0].slots
    np.testing.assert_allclose(
        np.array(slots) / sum(slots), np.array(data.weights) / sum(data.weights), rtol=0.03
    )


def test_unknown_robots_get_their_own_head(sources: tuple[SourceConfig, ...]) -> None:
    data = opened(*(replace(source, control_mode="") for source in sources))
    assert data.heads == tuple(sorted(NAMES))
    said = opened(*(replace(source, robot_type="") for source in (sources[0], sources[2])))
    assert said.heads == ("test_arm::joint",)  # as info.json says


def pasted(lines: list[str], folder: Path) -> tuple[SourceConfig, ...]:
    """The sources of a settings file with the end of a message."""
    (folder / "pasted.yaml").write_text(textwrap.dedent("\n".join(lines[lines.index("  data:") :])))
    return load(TrainConfig, folder / "pasted.yaml").data.sources


def test_open_data_reports_errors_of_all_sources(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    wide, two, small = sources
    with pytest.raises(DatasetError) as caught:
        opened(
            replace(wide, name="nowhere", root=str(tmp_path / "nothing")),
            replace(two, name="key", action="actions"),
            replace(two, name="camera", cameras={TOP: "observation.state"}),
            replace(wide, name="episodes", val_episodes=(99,)),
            replace(wide, name="delta", delta_action_dims=(4,)),
            replace(small, name="split", episodes=(0,)),
            replace(small, name="all held", episodes=(0, 1), val_episodes=(0, 1)),
            replace(wide, name="left", drop_n_first_frames=20),
            replace(wide, name="stateless", state=""),
            wide,
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "9 of 10 sources cannot be used"
    assert pasted(lines, tmp_path) == (wide,)
    told = {line.split(":")[0].removeprefix("  source "): line for line in lines[1:]}
    for name, words in {
        "nowhere": "no such folder",
        "key": "actions",
        "camera": "not a camera",
        "episodes": "there is no episode 99 to validate on",
        "delta": "delta_action_dims: 4: 'action' has 4 dimensions",
        "split": "1 episode cannot be split",
        "all held": "val_episodes contains all",
        "left": "no frame is left",
        "stateless": "it has no 'observation.state', which other sources have",
    }.items():
        assert words in told[name], told[name]


def test_sources_to_paste_leave_out_bad_episodes_and_wrong_sources(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    """What the message shows opens, with all other settings as they are."""
    wide, two, small = sources
    shutil.copytree(small.root, tmp_path / "gap")
    gone = sorted((tmp_path / "gap").rglob("*.mp4"))
    assert gone
    shutil.copytree(two.root, tmp_path / "old")
    parts = write_parts(tmp_path / "parts")
    sorted(parts.rglob("*.mp4"))[1].unlink()
    given = (
        replace(wide, name="wide", stats=str(tmp_path / "none.json")),
        replace(two, name="broken", root=str(tmp_path / "old")),
        SourceConfig(
            str(parts),
            "third",
            "joint",
            name="parts",
            weight=2,
            cameras={TOP: "observation.images.cam_0"},
        ),
        replace(small, name="small", val_fraction=0.0),
    )
    (tmp_path / "old/meta/info.json").write_text("{")
    with pytest.raises(DatasetError) as caught:
        opened(*given)
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 of 4 sources cannot be used"
    kept = pasted(lines, tmp_path)
    assert kept == (given[0], replace(given[2], exclude_episodes=(1,)), given[3])
    assert opened(*kept).names == ("wide", "parts", "small")
    many = [replace(given[1], name=f"n{number}") for number in range(201)]
    with pytest.raises(DatasetError) as caught:
        opened(*many, given[3])
    last = str(caught.value).splitlines()[-1]
    assert last.split(": ")[-1] == " ".join(map(str, range(201)))


def write_parts(root: Path) -> Path:
    """Three episodes, each in files of its own."""
    spec = Spec(
        "v2.1", lengths=(7, 8, 9), action_dim=4, state_dim=5, cameras=("observation.images.cam_0",)
    )
    write_dataset(root, spec)
    return root


def test_all_sources_of_one_head_and_all_unlike_ones_are_named(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    """Robots of other widths under one control mode, and columns of other kinds."""
    wide, two, _ = sources
    others = [replace(two, robot_type="arm", name=f"arm{number}") for number in range(2)]
    with pytest.raises(DatasetError) as caught:
        opened(wide, *others)
    told = str(caught.value)
    assert told.splitlines()[0] == "2 of 3 sources cannot be used"
    assert told.count("head 'arm::joint'") == 2
    for name in ("whole", "numbers"):
        features = {
            key: {"dtype": "int64", "shape": (2,)} for key in ("action", "observation.state")
        }
        with EpisodeWriter(tmp_path / name, fps=10, features=features) as writer:
            for _ in range(4):
                for _ in range(6):
                    writer.add_frame({key: np.arange(2) for key in features}, task="t")
                writer.save_episode()
    with pytest.raises(DatasetError) as caught:
        opened(
            wide,
            *(
                SourceConfig(str(tmp_path / name), name=name, weight=1)
                for name in ("whole", "numbers")
            ),
        )
    told = str(caught.value)
    assert told.splitlines()[0] == "2 of 3 sources cannot be used"
    assert "source whole" in told
    assert "source numbers" in told


def test_one_source_tells_all_of_its_mistakes(sources: tuple[SourceConfig, ...]) -> None:
    wrong = replace(sources[0], val_episodes=(99,), delta_action_dims=(7,))
    with pytest.raises(DatasetError) as caught:
        opened(wrong, *sources[1:])
    assert all(word in caught.value.what for word in ("episode 99", "delta_action_dims: 7"))


def test_copies_and_rates_are_a_line(many: Path, tmp_path: Path) -> None:
    """The same files behind a link, or copied; parts of one dataset, and other recordings, are
    none.
    """
    (tmp_path / "link").symlink_to(many)
    shutil.copytree(many, tmp_path / "copy")
    write_dataset(tmp_path / "other", Spec(lengths=(5, 3, 6, 4), cameras=(), fps=20))
    one = SourceConfig(str(many), name="one", val_episodes=(1,))

    def copies(*others: SourceConfig) -> list[str]:
        data = opened(one, *others)
        return describe_copies(data, file_digests(data))

    for root in ("link", "copy"):
        same = replace(one, name="same", root=str(tmp_path / root))
        (line,) = copies(same)
        assert "one, same" in line
        assert "9 episodes" in line
    (line,) = copies(replace(one, name="same", root=str(tmp_path / "copy"), val_episodes=(2,)))
    assert "8 episodes" in line
    assert "2 validation episodes" in line
    first = replace(one, episodes=(0, 1, 2, 3))
    rest = replace(first, name="rest", episodes=(4, 5, 6, 7), val_episodes=(5,))
    data = opened(first, rest)
    assert not describe_copies(data, file_digests(data))
    assert not copies(SourceConfig(str(tmp_path / "other"), name="other"))
    (line,) = describe_rates(opened(one, SourceConfig(str(tmp_path / "other"), name="other")), 8)
    assert "10 fps, 0.8 s a chunk, in one" in line
    assert "20 fps, 0.4 s a chunk, in other" in line
    assert not describe_rates(data, 8)


def test_open_data_reports_source_errors_before_missing_cameras(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    """The chosen camera may be one of a source that cannot be opened: the error names that
    source.
    """
    gone = replace(sources[1], name="gone", root=str(tmp_path / "nothing"))
    with refused("gone", tmp_path / "nothing", fix=None):
        opened(sources[0], gone, cameras=(TOP, WRIST))
    with refused(repr(WRIST), where=sources[0].root, fix=TOP):
        opened(sources[0], cameras=(TOP, WRIST))


# -- the split -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many") / "d"
    write_dataset(root, Spec(lengths=(5, 3, 6, 4, 7, 3, 5, 6, 4, 5), cameras=()))
    return root


def test_open_data_refuses_an_episode_in_both_parts(many: Path, tmp_path: Path) -> None:
    """Also by another way to the same folder."""
    (tmp_path / "link").symlink_to(many)
    first = SourceConfig(str(many), name="a", val_episodes=(1,))
    second = SourceConfig(str(tmp_path / "link"), name="b", val_episodes=(2,))
    with refused(1, "a", "b", where=str(many), fix="val_episodes"):
        opened(first, second)
    both = opened(first, replace(second, val_episodes=(1,)))
    assert [len(part) for part in both.training] == [45, 45]


# -- the sequence of the sources -------------------------------------------------------------------


def test_sequence_of_sources_changes_no_number(sources: tuple[SourceConfig, ...]) -> None:
    one = opened(*sources)
    other = opened(*reversed(sources))
    assert other.names == tuple(reversed(NAMES))
    assert (one.heads, one.cameras, one.size) == (other.heads, other.cameras, other.size)
    assert compute_normalization(one, "quantile") == compute_normalization(other, "quantile")
    wrist = replace(sources[1], cameras={WRIST: WRIST})
    assert opened(wrist, sources[0]).cameras == opened(sources[0], wrist).cameras == (TOP, WRIST)
    assert dataset_fingerprint(one) == dataset_fingerprint(other)
    assert [part.segments.tolist() for part in one.validation] == [
        part.segments.tolist() for part in other.validation[::-1]
    ]


def test_dataset_fingerprint_names_the_changed_source(sources: tuple[SourceConfig, ...]) -> None:
    wide, two, small = sources
    before = dataset_fingerprint(opened(*sources))
    now = dataset_fingerprint(
        opened(wide, replace(two, val_episodes=(0,)), replace(small, control_mode="velocity"))
    )
    assert {key for key in before if before[key] != now.get(key)} == {
        "two: held-out episodes",
        "small: norm head",
    }
    plain = dataset_fingerprint(open_data(tiny_config(Path(wide.root), Path("r"))))
    assert "fps" in plain  # as runs of one dataset have always had it


def test_normalization_uses_external_statistics_and_deltas(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    wide, two, small = sources
    far = {
        "norm_stats": {
            key: {"mean": [7.0] * n, "std": [2.0] * n} for key, n in (("actions", 2), ("state", 2))
        }
    }
    (tmp_path / "norm_stats.json").write_text(json.dumps(far))
    arm = [replace(source, delta_action_dims=(0, 2)) for source in (wide, small)]
    scales = compute_normalization(
        opened(arm[0], replace(two, stats=str(tmp_path / "norm_stats.json")), arm[1]), "mean_std"
    )
    assert scales["delta"] == [[True, False, True, False], [False] * 4]
    assert scales["action"]["offset"][1] == [7.0, 7.0, 0.0, 0.0]
    plain = compute_normalization(opened(*sources), "mean_std")["action"]["offset"][0]
    assert [a == b for a, b in zip(scales["action"]["offset"][0], plain)] == [
        False,
        True,
        False,
        True,
    ]
    with refused(2, 3, "wide", "small", fix=None):
        compute_normalization(
            opened(*(replace(s, stats=str(tmp_path / "none.json")) for s in (wide, small)), two),
            "mean_std",
        )


def test_open_data_refuses_to_resize_stored_images(
    sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    write_dataset(tmp_path / "stored", Spec(lengths=(6, 7), cameras=(), images=(WRIST,)))
    stored = SourceConfig(str(tmp_path / "stored"))
    with refused(repr(WRIST), where=stored.root, fix="policy.image_size"):
        opened(sources[1], stored, cameras=(WRIST,))
    config = mixed((sources[1], stored), Path("r"))
    with refused(repr(WRIST), "0 (two)", "1 (stored)", fix=None):
        open_data(replace(config, policy=replace(config.policy, image_size=(64, 64))))
