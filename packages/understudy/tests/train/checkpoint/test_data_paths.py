"""Places of a run's data: other working directories, moved datasets, moved runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import DatasetError, SourceError
from understudy_base.testing.refusals import absent
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import SourceConfig, override
from understudy_kit.cli import main


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset and a run of two steps that names it by a relative path."""
    folder = tmp_path_factory.mktemp("project")
    write_dataset(folder / "data/set", Spec(lengths=(8, 9, 7), gop=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = tiny_config(
            Path("data/set"), Path("runs/one"), steps=2, checkpoint={"every": 2}, val={"every": 2}
        )
        assert run.train(override(config, log={"report": False})) == run.DONE
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_a_run_with_a_relative_root_is_validated_from_another_folder(
    project: Path, elsewhere: Path
) -> None:
    figures = run.evaluate_checkpoint(project / "runs/one")
    assert figures["step"] == 2
    assert figures["samples"] > 0
    assert RunDir(project / "runs/one").settings().data.root == str(project / "data/set")


def test_a_run_that_moved_with_its_data_finds_it(project: Path, elsewhere: Path) -> None:
    shutil.copytree(project, elsewhere / "new")
    shutil.copytree(project / "data", elsewhere / "aside")
    shutil.rmtree(project / "data")
    try:
        moved = RunDir(elsewhere / "new/runs/one").settings()
        assert moved.data.root == str(elsewhere / "new/data/set")
        assert run.resume(override(moved, steps=3, log={"report": False})) == run.DONE
    finally:
        shutil.copytree(elsewhere / "aside", project / "data")


def test_a_dataset_that_is_gone_is_named_with_the_flag(
    project: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(project / "runs/one", elsewhere / "one")
    shutil.copytree(project / "data/set", elsewhere / "copy")
    path = elsewhere / "one/config.yaml"
    path.write_text(path.read_text().replace(str(project / "data/set"), str(elsewhere / "gone")))
    config = RunDir(elsewhere / "one").settings()
    with pytest.raises(DatasetError) as error:
        run.resume(config)
    assert str(elsewhere / "gone") in str(error.value)
    assert not absent(error.value.fix, "--data.root", f"{elsewhere / 'one'}/config.yaml")
    assert main.main(["validate", str(elsewhere / "one")]) == main.WRONG_INPUT
    assert "--data.root" in capsys.readouterr().err
    assert main.main(["validate", str(elsewhere / "one"), "--data.root", "../copy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    assert (
        run.resume(override(config, steps=3, data={"root": "../copy"}, log={"report": False}))
        == run.DONE
    )
    assert RunDir(elsewhere / "one").settings().data.root == str(elsewhere / "copy")


def test_a_mixture_that_moved_is_resumed_as_the_message_says(elsewhere: Path) -> None:
    """It names each root that is gone, in config.yaml of the run: --data.root is for a single
    dataset.
    """
    for name in ("a", "b"):
        write_dataset(elsewhere / name, Spec(lengths=(8, 9), gop=3))
    sources = tuple(SourceConfig(root=str(elsewhere / name)) for name in ("a", "b"))
    config = tiny_config(
        elsewhere / "a", elsewhere / "mixed", steps=2, checkpoint={"every": 2}, val={"every": 2}
    )
    config = override(config, data={"root": "", "sources": sources}, log={"report": False})
    assert run.train(config) == run.DONE
    shutil.move(elsewhere / "b", elsewhere / "moved")
    with pytest.raises(DatasetError) as error:
        run.resume(override(RunDir(elsewhere / "mixed").settings(), steps=3))
    path = elsewhere / "mixed/config.yaml"
    assert not absent(error.value.fix, path, "data.sources.1.root", elsewhere / "b")
    assert "sources.0" not in error.value.fix
    assert "--data.root" not in error.value.fix
    path.write_text(path.read_text().replace(str(elsewhere / "b"), str(elsewhere / "moved")))
    assert run.resume(override(RunDir(elsewhere / "mixed").settings(), steps=3)) == run.DONE


def test_an_outage_of_the_hub_stays_an_outage(
    project: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The hub id of a dataset is no path, so its dataset looks as if it had moved."""
    shutil.copytree(project / "runs/one", elsewhere / "one")
    config = elsewhere / "one/config.yaml"
    config.write_text(config.read_text().replace(str(project / "data/set"), "owner/name"))

    def fail(*_: object) -> None:
        raise SourceError(
            "no answer for 600 s", where="owner/name", fix="try again later", transient=True
        )

    monkeypatch.setattr(run, "open_data", fail)
    assert main.main(["resume", str(elsewhere / "one"), "--log.no-report"]) == main.FAILED
    assert "try again later" in capsys.readouterr().err


def test_hub_ids_addresses_and_feature_names_stay(project: Path, elsewhere: Path) -> None:
    (elsewhere / "elsewhere/weights").mkdir()
    config = override(
        tiny_config(Path("owner/name"), Path("r")), data={"frame_weights": "observation.weight"}
    )
    source = replace(
        config.data.mixed()[0], name="b", root="hf://datasets/owner/name", keep_ranges="gone.json"
    )
    config = override(config, data={"sources": (source,)})
    assert run.resolve_paths(config) == config
    assert run.resolve_paths(override(config, data={"root": "weights"})).data.root == str(
        elsewhere / "elsewhere/weights"
    )
