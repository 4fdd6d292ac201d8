"""Files of a run or of settings that are not as they should be: one line, an exit code, never a
traceback.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import TrainConfig
from understudy.testing.runs import SHORT, series, trained_run
from understudy.train import run
from understudy.train.checkpoint.checksums import add_seal
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy_base import ConfigError
from understudy_kit import load, main, validate


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("odd") / "run", **SHORT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "seed: " + "9" * 5000),
        ("b.yaml", "[" * 3_000),
        ("c.yaml", 'data: {root: "a\\0b"}'),
        ("d.toml", "seed = " + "9" * 5000),
        ("e.toml", "a = " + "[" * 100_000),
        ("f.toml", 'data.root = "a\\u0000b"'),
        ("g.json", "[" * 100_000),
        ("h.json", '{"seed": ' + "9" * 5000 + "}"),
    ],
)
def test_train_refuses_unparsable_settings(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["train", str(tmp_path / name), "--output-dir", str(tmp_path / "r")]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.count("\n") == 1
    with pytest.raises(ConfigError):
        load(TrainConfig, tmp_path / name)


def test_train_refuses_nul_in_settings() -> None:
    with pytest.raises(ConfigError, match=r"data\.sources\.1\.root"):
        validate(TrainConfig, {"data": {"sources": [{"root": "a"}, {"root": "b\0c"}]}})


def values(content: Any, depth: int = 3) -> Iterator[tuple[Any, ...]]:
    """Paths of values in a JSON document; of a list only its first item."""
    items = content.items() if isinstance(content, dict) else list(enumerate(content))[:1]
    for key, value in items:
        yield (key,)
        if depth > 1 and isinstance(value, dict | list) and value:
            yield from ((key, *rest) for rest in values(value, depth - 1))


def test_resume_refuses_malformed_order_json(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((trained / "order.json").read_text())
    shutil.copytree(trained, tmp_path / "run")
    paths = [
        path
        for path in values(whole)
        if path[0] in ("normalisation", "order", "sources") or len(path) == 1
    ]
    assert len(paths) > 30
    for number, path in enumerate(paths):
        content = json.loads(json.dumps(whole))
        at = content
        for key in path[:-1]:
            at = at[key]
        wrong = (None, "x", -1)[number % 3]
        at[path[-1]] = wrong if at[path[-1]] != wrong else "x"
        if path[0] == "normalisation":
            del content["seal"]
            content = add_seal(content)
        (tmp_path / "run/order.json").write_text(json.dumps(content))
        assert main(["resume", str(tmp_path / "run")]) in (
            (0, 2) if path[0] == "normalisation" else (2,)
        ), path
        assert "Traceback" not in capsys.readouterr().err, path


def test_resume_refuses_malformed_steps(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    whole = (tmp_path / "run/metrics.jsonl").read_text()
    for line in (
        '{"kind": "train", "step": "x"}',
        '{"kind": "train", "step": null}',
        '{"kind": "train", "step": true}',
        '{"kind": 7, "step": 1}',
        '{"kind": "val", "step": 1, "at": "x"}',
        "[1]",
        "[" * 100_000,
    ):
        (tmp_path / "run/metrics.jsonl").write_text(whole + line + "\n")
        with pytest.raises(ConfigError, match=r"metrics\.jsonl: line"):
            metrics_file.read(tmp_path / "run/metrics.jsonl")
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("left", [0, 2])
def test_resume_warns_about_missing_metrics(
    trained: Path, tmp_path: Path, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run/metrics.jsonl"
    records = metrics_file.read(path)
    if left:
        path.write_text("".join(json.dumps(r) + "\n" for r in records if r["step"] <= left))
    else:
        path.unlink()
    assert run.resume(replace(RunDir(tmp_path / "run").settings(), steps=5)) == run.DONE
    assert "metrics.jsonl" in capsys.readouterr().err
    assert [r["step"] for r in series(tmp_path / "run")] == [*range(1, left + 1), 5]
    assert run.resume(replace(RunDir(trained).settings(), steps=4)) == run.DONE
    assert "metrics.jsonl" not in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("warmup", [3, 4, 10])
def test_startup_summary_notes_a_warmup_longer_than_the_run(
    trained: Path, tmp_path: Path, warmup: int, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = RunDir(trained).settings()
    schedule = replace(settings.schedule, warmup_steps=warmup)
    assert (
        run.train(replace(settings, output_dir=str(tmp_path / "r"), schedule=schedule)) == run.DONE
    )
    assert ("schedule.warmup" in capsys.readouterr().err) == (warmup >= 4)
