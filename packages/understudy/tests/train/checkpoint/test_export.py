"""A policy out of a run and back: the same bits, without dataset or processes; and the best
checkpoint kept for it.
"""

import hashlib
import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from understudy.policies import policy_folder
from understudy.policies.flow.model import FlowPolicy
from understudy.report.run.page import write_report
from understudy.testing import resumed
from understudy.testing.runs import final_tensors, series, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint, export
from understudy.train.checkpoint.checkpoint import Saver
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError, create_folder
from understudy_base.testing.refusals import refused
from understudy_kit import main, override


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A run that keeps the best checkpoint, at a rate at which the last one is not the best."""
    config = tiny_config(
        data, data.parent / "trained", checkpoint={"keep_last": 1, "every": 12}, val={"every": 2}
    )
    assert run.train(replace(config, optim=replace(config.optim, lr=0.3))) == run.DONE
    return data.parent / "trained"


def test_train_writes_and_keeps_the_best_checkpoint(trained: Path) -> None:
    judged = {r["step"]: r["loss"] for r in series(trained, "val")}
    best = min(judged, key=lambda step: judged[step])
    assert best not in (2, 12), "the test wants a best one in the middle"
    assert checkpoint.list_steps(trained / "checkpoints") == [12]
    path = checkpoint.find_best(trained / "checkpoints", "loss")
    assert path == trained / f"checkpoints/best-{best:08d}"
    # without moments
    assert {name.partition("/")[0] for name in checkpoint.tensor_names(path)} == {"average"}
    assert checkpoint.read_state(path)["judged"]["loss"] == judged[best]
    assert checkpoint.find_best(trained / "checkpoints", "nothing") is None


def test_best_weights_are_kept_by_default_and_named(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert RunDir(trained).settings().checkpoint.keep_best == "loss"
    judged = {r["step"]: r["loss"] for r in series(trained, "val")}
    best = min(judged, key=lambda step: judged[step])
    assert main(["export", str(trained), "--output-dir", str(tmp_path / "last")]) == 0
    said = capsys.readouterr().out
    assert (
        f"step 12, validation loss {judged[12]:.4g}; the lowest is {judged[best]:.4g} at step "
        f"{best}" in said
    )
    assert "--checkpoint best" in said
    assert (
        main(
            ["export", str(trained), "--checkpoint", "best", "--output-dir", str(tmp_path / "best")]
        )
        == 0
    )
    assert f"step {best}, validation loss {judged[best]:.4g}, the lowest" in capsys.readouterr().out
    assert (
        main(
            [
                "export",
                str(trained),
                "--checkpoint",
                str(best),
                "--output-dir",
                str(tmp_path / "same"),
            ]
        )
        == 0
    )
    files = [tmp_path / name / "model.safetensors" for name in ("best", "same")]
    assert files[0].read_bytes() == files[1].read_bytes()
    size = sum(file.stat().st_size for file in (trained / f"checkpoints/best-{best:08d}").iterdir())
    assert size < 0.5 * sum(
        file.stat().st_size for file in (trained / "checkpoints/step-00000012").iterdir()
    )
    write_report(trained, tmp_path / "page.html")
    assert (
        f"the lowest is {judged[best]:.4g} at step {best}" in (tmp_path / "page.html").read_text()
    )


@pytest.mark.short("11")
@pytest.mark.parametrize("stop", [3, 7, 11])
def test_resume_makes_the_same_best_weights(
    trained: Path, data: Path, tmp_path: Path, stop: int
) -> None:
    whole = RunDir(trained).settings()
    config = override(
        whole, output_dir=str(tmp_path / "r"), checkpoint={"every": 2, "keep_last": 2}
    )
    with resumed.watched(tmp_path / "r", {stop: resumed.send(signal.SIGTERM)}):
        assert run.train(config) == run.STOPPED
    folder = tmp_path / "r/checkpoints"
    # killed: the best may be of a later step than the latest
    shutil.rmtree(checkpoint.find_latest(folder) or folder)
    assert run.resume(RunDir(tmp_path / "r").settings()) == run.DONE
    assert series(tmp_path / "r", "val") == series(trained, "val")
    assert checkpoint.list_best(folder) == checkpoint.list_best(trained / "checkpoints")
    (step,) = checkpoint.list_best(folder)
    one, two = (
        checkpoint.read_tensors(each / f"best-{step:08d}")
        for each in (folder, trained / "checkpoints")
    )
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not list(folder.glob("*.tmp"))


def test_prune_keeps_the_best_weights_until_a_better_one_is_behind_a_checkpoint(
    tmp_path: Path,
) -> None:
    def save(step: int, loss: float, kind: Any) -> None:
        checkpoint.save(
            tmp_path, step, {"weights/a": torch.ones(1)}, {"judged": {"loss": loss}}, kind=kind
        )
        checkpoint.prune(tmp_path, keep_last=1, best_by="loss")

    save(2, 3.0, "best")
    save(4, 2.0, "best")  # a kill now resumes from the start, and makes both again
    assert checkpoint.list_best(tmp_path) == [4]
    save(5, 9.0, "step")
    save(6, 1.0, "best")
    # a kill now resumes from step 5, whose best is 4
    assert checkpoint.list_best(tmp_path) == [4, 6]
    assert checkpoint.find_best(tmp_path, "loss") == tmp_path / "best-00000006"
    save(8, 9.0, "step")
    assert checkpoint.list_best(tmp_path) == [6]
    save(9, 0.5, "best")
    checkpoint.forget_later(tmp_path)
    assert checkpoint.list_best(tmp_path) == [6]
    checkpoint.prune(tmp_path, keep_last=1)  # without a figure nothing is removed
    assert checkpoint.list_best(tmp_path) == [6]


def test_prune_keeps_the_best(tmp_path: Path) -> None:
    for step, loss in ((0, math.nan), (1, 0.5), (2, 0.2), (3, 0.2), (4, None), (5, 0.9)):
        judged = {} if loss is None else {"loss": loss}
        checkpoint.save(tmp_path, step, {"weights/a": torch.ones(1)}, {"judged": judged})
    (tmp_path / "step-00000001/state.json").write_text(
        "damaged, and none of a resumed run's business"
    )
    checkpoint.prune(tmp_path, keep_last=2, best_by="loss")
    assert checkpoint.list_steps(tmp_path) == [2, 4, 5]
    checkpoint.prune(tmp_path, keep_last=1)
    assert checkpoint.list_steps(tmp_path) == [5]


def test_saver_survives_a_failing_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoint, "prune", refused)
    saver = Saver(tmp_path, keep_last=1, background=True)
    for step in (1, 2):
        saver.save(step, {"weights/a": torch.ones(1)}, {})
    saver.wait()
    assert checkpoint.list_steps(tmp_path) == [1, 2]
    assert "old checkpoints cannot be removed" in capsys.readouterr().err


def test_export_is_the_policy_of_the_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "r")
    settings = (tmp_path / "r/config.yaml").read_text()
    (tmp_path / "r/config.yaml").write_text(settings.replace("dataset", "gone"))
    assert main(["export", str(tmp_path / "r"), "--output-dir", str(tmp_path / "whole")]) == 0
    assert "in fp32 of step-00000012" in capsys.readouterr().out
    for file in ("model.safetensors", "config.json", "normalisation.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (trained / "policy" / file).read_bytes()
    assert main(["export", str(tmp_path / "r"), "--dtype", "bf16", "--checkpoint", "12"]) == 0
    half = FlowPolicy.load(tmp_path / "r/export").state_dict()
    whole = FlowPolicy.load(tmp_path / "whole").state_dict()
    for name, tensor in final_tensors(trained).items():
        if name.startswith("average/"):
            assert torch.equal(whole[name.removeprefix("average/")], tensor)
            assert torch.equal(half[name.removeprefix("average/")], tensor.bfloat16().float())
    size = [
        (folder / "model.safetensors").stat().st_size
        for folder in (tmp_path / "r/export", tmp_path / "whole")
    ]
    assert size[0] < 0.6 * size[1]
    assert (
        main(
            [
                "export",
                str(tmp_path / "r"),
                "--checkpoint",
                "best",
                "--output-dir",
                str(tmp_path / "best"),
            ]
        )
        == 0
    )
    assert (tmp_path / "best/model.safetensors").read_bytes() != (
        tmp_path / "whole/model.safetensors"
    ).read_bytes()


def test_export_replaces_only_an_export(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("years of work")
    shutil.copytree(data, tmp_path / "dataset")
    shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(trained / "policy", tmp_path / "policy")
    shutil.copytree(tmp_path / "thesis", tmp_path / "policy.old")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("file", "thesis", "dataset", "run", "run/checkpoints", "."):
        assert (
            main(["export", str(trained), "--overwrite", "--output-dir", str(tmp_path / name)]) == 2
        ), name
        told = capsys.readouterr().err
        assert told.count("\n") == 1, told
        assert "Traceback" not in told
    again = ["export", str(trained), "--dtype", "bf16", "--output-dir", str(tmp_path / "policy")]
    assert main(again) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert main([*again, "--overwrite"]) == 0
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    } == {
        tmp_path / "policy/contract.json",  # has the digest of the weights
        tmp_path / "policy/model.safetensors",
        tmp_path / "policy/understudy.sha256",
    }


def test_export_failure_is_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trained), "--checkpoint", "7"]) == 2
    assert "there are: 6, 12" in capsys.readouterr().err
    assert main(["export", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["export"]) == 2


def test_train_starts_from_an_exported_policy(trained: Path, data: Path, tmp_path: Path) -> None:
    exported = trained / "policy"
    config = tiny_config(
        data,
        tmp_path / "r",
        init_from=str(exported),
        steps=4,
        checkpoint={"every": 2},
        val={"every": 4},
    )
    # So little that the weights stay as they were; on other data, whose own normalization would be
    # another.
    still = replace(config, optim=replace(config.optim, lr=1e-30, weight_decay=0.0))
    still = replace(still, data=replace(still.data, val_fraction=0.5))
    assert run.train(still) == run.DONE
    one = FlowPolicy.load(exported)
    two = FlowPolicy.load(tmp_path / "r/policy")
    assert all(
        torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items()
    )
    assert (exported / "normalisation.json").read_text() == (
        tmp_path / "r/policy/normalisation.json"
    ).read_text()
    fresh = tiny_config(data, tmp_path / "fresh", steps=1, val={"every": 0})
    run.train(fresh)
    run.train(replace(fresh, output_dir=str(tmp_path / "begun"), init_from=str(trained)))  # a run
    assert series(tmp_path / "fresh")[0]["loss"] != series(tmp_path / "begun")[0]["loss"]


def test_init_from_reads_a_folder_of_several_files(trained: Path, tmp_path: Path) -> None:
    whole = policy_folder.load(trained / "policy")
    tensors = dict(whole.weights)
    shutil.copytree(
        trained / "policy",
        tmp_path / "p",
        ignore=shutil.ignore_patterns("*.safetensors", "*.sha256"),
    )
    names = {key: f"{i % 2}.safetensors" for i, key in enumerate(tensors)}

    def write() -> export.InitialPolicy:
        for name in set(names.values()):
            save_file(
                {key: t for key, t in tensors.items() if names[key] == name}, tmp_path / "p" / name
            )
        (tmp_path / "p" / f"{policy_folder.WEIGHTS}.index.json").write_text(
            json.dumps({"weight_map": names})
        )
        return export.read_initial_policy(tmp_path / "p", whole.config)

    first = export.read_initial_policy(trained / "policy", whole.config)
    assert (
        first.digest
        == hashlib.sha256((trained / "policy" / policy_folder.WEIGHTS).read_bytes()).hexdigest()
    )
    found = write()
    assert found.weights.keys() == first.weights.keys()
    assert all(torch.equal(found.weights[key], tensor) for key, tensor in first.weights.items())
    for key in list(tensors)[:2]:  # one of each file
        tensors[key] = tensors[key] + 1
        changed = write()
        assert changed.digest != found.digest
        found = changed
    tensors[key][:] = math.nan
    with pytest.raises(ConfigError, match=f"init_from: .*{key}"):
        write()


def test_resume_before_the_first_checkpoint_starts_from_the_exported_policy(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(trained / "policy", tmp_path / "first")
    config = tiny_config(
        data, tmp_path / "a", init_from=str(tmp_path / "first"), steps=4, val={"every": 0}
    )
    run.train(config)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for part in ("checkpoints", "policy"):  # as a kill before the first checkpoint leaves it
        shutil.rmtree(tmp_path / "b" / part)
    settings = RunDir(tmp_path / "b").settings()
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="init_from"):
        run.resume(settings)
    shutil.copytree(tmp_path / "a/policy", tmp_path / "first")  # another policy of the same shape
    with pytest.raises(ConfigError, match="init_from"):
        run.resume(settings)
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "elsewhere").rename(tmp_path / "first")
    assert run.resume(settings) == run.DONE
    assert series(tmp_path / "a") == series(tmp_path / "b")
    shutil.rmtree(tmp_path / "first")  # not needed once there is a checkpoint
    assert run.resume(replace(settings, steps=5)) == run.DONE


def test_init_from_refuses_another_network(trained: Path, data: Path, tmp_path: Path) -> None:
    base = tiny_config(data, tmp_path / "r", init_from=str(trained / "policy"))
    other = replace(
        base, policy=replace(base.policy, width=24), data=replace(base.data, chunk_size=2)
    )
    with refused("init_from", "chunk: 3", 2, "width: 16", 24, kind=ConfigError):
        run.train(other)
    with refused("init_from", tmp_path, kind=ConfigError):
        run.train(replace(base, init_from=str(tmp_path)))
    assert not (tmp_path / "r/config.yaml").exists()


def test_an_export_beside_another_one_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "policy"
    words = ["export", str(trained), "--output-dir", str(out)]
    with create_folder(out) as other:
        (other / "mine").write_text("first")
        assert main(words) == 2
    assert str(out) in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["mine"]
    assert len(list(tmp_path.iterdir())) == 1


def test_an_export_that_finds_another_one_at_its_end_keeps_it(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "policy"
    words = ["export", str(trained), "--output-dir", str(out)]
    save = policy_folder.save
    calls = []

    def slow(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            # the other process, behind the checks of this one
            assert main([*words, "--dtype", "bf16"]) == 0
        save(*arguments, **options)

    monkeypatch.setattr(policy_folder, "save", slow)
    assert main(words) == 2
    assert str(out) in capsys.readouterr().err
    assert {weight.dtype for weight in load_file(out / "model.safetensors").values()} >= {
        torch.bfloat16
    }
