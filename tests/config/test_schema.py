"""Settings: every error of a file at once, misspelt names, files and flags and dumps that agree."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.config.train import TrainConfig
from understudy.policies.flow.config import FlowSettings
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import complete, differences, dump_yaml, load, plain, read_file, validate
from understudy_tools.imports.settings import ImportMapping


def test_load_reports_all_errors_by_dotted_path(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "stepz: 3\nbatch_size: many\noptim: {lr: -1, beta: 0.9}\ndata: {root: d, shuffle: zigzag}\n"
    )
    with refused(path, 5, "'steps'", kind=ConfigError) as caught:
        load(TrainConfig, path)
    lines = [line.partition(":") for line in str(caught.value).splitlines()[1:]]
    assert {name.strip() for name, _, _ in lines} == {
        "stepz",
        "batch_size",
        "optim.lr",
        "optim.beta",
        "data.shuffle",
    }


def test_validate_lists_known_names_for_an_unknown_one() -> None:
    with refused("optim.qqqqqq", "weight_decay", kind=ConfigError):
        validate(TrainConfig, {"optim": {"qqqqqq": 1}})


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.yaml", "steps: [", "YAML"),
        ("a.yaml", "- 1\n- 2\n", "list"),
        ("a.toml", "steps = ", "TOML"),
        ("missing.yaml", None, "missing.yaml"),
        ("a.yaml", b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_read_file_refuses_unreadable_files(
    tmp_path: Path, name: str, content: object, told: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    with refused(path, told, kind=ConfigError):
        read_file(path)


def test_read_file_refuses_a_folder(tmp_path: Path) -> None:
    with refused(tmp_path, kind=ConfigError):
        read_file(tmp_path)


def test_load_reads_yaml_and_toml_alike(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "steps: 7\noptim:\n  lr: 1e-4\npolicy:\n  image_size: [32, 48]\n"
    )
    (tmp_path / "c.toml").write_text(
        "steps = 7\n[optim]\nlr = 1e-4\n[policy]\nimage_size = [32, 48]\n"
    )
    config = load(TrainConfig, tmp_path / "c.yaml")
    assert config == load(TrainConfig, tmp_path / "c.toml")
    assert (config.steps, config.optim.lr, config.policy.image_size) == (7, 1e-4, (32, 48))


@given(
    st.floats(1e-12, 1e3),
    st.integers(0, 2**63 - 1),
    st.text(
        st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1
    ).filter(
        lambda text: "://" not in text  # an address is written without its credentials
    ),
    st.none() | st.integers(1, 10**9),
)
def test_dump_yaml_reads_back_equal(  # type: ignore[no-untyped-def]
    tmp_path_factory, lr, seed, root, end
) -> None:
    base = TrainConfig()
    config = replace(
        base,
        seed=seed,
        data=replace(base.data, root=root),
        optim=replace(base.optim, lr=lr),
        schedule=replace(base.schedule, decay_steps=end),
    )
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(dump_yaml(config), encoding="utf-8")
    assert load(TrainConfig, path) == config


def test_differences_lists_changed_leaves() -> None:
    base = TrainConfig()
    other = replace(base, seed=3, policy=replace(base.policy, image_size=(32, 32)))
    assert differences(base, other) == {"seed": (0, 3), "policy.image_size": ([64, 64], [32, 32])}
    assert differences(base, base) == {}


def test_complete_reports_all_problems() -> None:
    config = replace(TrainConfig(), policy=FlowSettings(width=12, image_size=(63, 64), keypoints=3))
    with pytest.raises(ConfigError) as caught:
        complete(config)
    assert all(
        place in str(caught.value)
        for place in ("data.root", "policy.width: 12", "policy.image_size", "policy.keypoints")
    )


def test_policy_settings_select_their_class_by_type() -> None:
    assert type(validate(TrainConfig, {"policy": {"width": 64}}).policy) is FlowSettings
    assert validate(TrainConfig, {"policy": {"type": "flow", "width": "64"}}).policy.width == 64
    with pytest.raises(ConfigError, match=r"policy: .*'flwo'"):
        validate(TrainConfig, {"policy": {"type": "flwo"}})
    with pytest.raises(ConfigError, match=r"policy\.widht"):
        validate(TrainConfig, {"policy": {"widht": 64}})
    with pytest.raises(ConfigError, match=r"policy\.width"):
        validate(TrainConfig, {"policy": {"width": "wide"}})


def test_validate_names_a_nested_value_of_the_wrong_type() -> None:
    @dataclass(frozen=True)
    class Inner:
        a: int = 1

    @dataclass(frozen=True)
    class Outer:
        inner: Inner = Inner()

    with pytest.raises(ConfigError, match="inner"):
        validate(Outer, {"inner": 3})
    assert plain(validate(Outer, {"inner": {"a": "4"}})) == {"inner": {"a": 4}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"steps": 3, "data": {"root": "d"}, "steps": 4}'),
        ("c.json", '{"data": {"root": "d", "root": "e"}}'),
        ("c.yaml", "steps: 3\ndata: {root: d}\nsteps: 4\n"),
        ("c.yaml", "data:\n  root: d\n  root: e\n"),
    ],
)
def test_setting_that_is_there_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with refused("root" if "steps" not in text else "steps", 2, kind=ConfigError):
        read_file(tmp_path / name)


def test_setting_beside_a_merge_of_yaml_is_no_second_one(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")
    assert read_file(tmp_path / "c.yaml")["b"] == {"x": 3, "y": 2}


def test_unknown_names_inside_mappings_lists_and_unions_are_refused() -> None:
    part = {"stream": "a", "dealy": 1}
    content = {
        "features": {"action": [part]},
        "task_from": part,
        "episodes": {"stream": "b", "idel": []},
    }
    with refused("features.action.0.dealy", "task_from.dealy", "episodes.idel", kind=ConfigError):
        validate(ImportMapping, content)
