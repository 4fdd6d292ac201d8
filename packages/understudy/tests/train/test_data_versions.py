"""The version of each dataset that a run read: recorded, shown by `audit`, named when `resume`
refuses.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.report.audit_page import audit_page, audit_text
from understudy.testing.runs import SHORT, final_tensors, tiny_config
from understudy.train import run
from understudy.train.audit import audit_run
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.order_file import OrderFile
from understudy_data.testing.datasets import Spec, edit_column, write_dataset
from understudy_data.testing.hub import REPO, HubServer
from understudy_data.testing.servers import folder
from understudy_kit import main, override

LENGTHS = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12)


def written(root: Path, lengths: tuple[int, ...] = LENGTHS) -> Path:
    write_dataset(root, Spec(lengths=lengths, gop=4, per_video_file=4))
    return root


def moved(root: Path, factor: float = 1.0) -> None:
    """Write info.json anew with the same content; `factor`: the actions, too."""
    info = root / "meta/info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"note": factor}))
    if factor != 1.0:
        for path in sorted(root.glob("data/chunk-*/*.parquet")):
            edit_column(path, "action", lambda rows: [np.asarray(row) * factor for row in rows])


def started(root: Path, out: Path) -> dict[str, str]:
    """Train, and return the version in order.json."""
    assert run.train(tiny_config(root, out, **SHORT)) == run.DONE
    (version,) = RunDir(out).read_record()["versions"]
    return dict(version)


def rows(out: Path) -> list[tuple[int, str, str]]:
    """Step, version and address of `audit`, which text and page have, too."""
    result, _ = audit_run(out, "latest", ())
    for row in result["versions"]:
        for shown in (audit_text(result), audit_page(result)):
            assert row["version"] in shown
            assert row["address"] in shown
    return [(row["step"], row["version"], row["address"]) for row in result["versions"]]


def test_an_equal_dataset_of_another_version_resumes_and_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = written(tmp_path / "data")
    out = tmp_path / "r"
    first = started(root, out)
    assert "meta/info.json" in first["version"]
    assert first["address"] == ""
    assert rows(out) == [(0, first["version"], "")]
    moved(root)
    assert run.resume(replace(RunDir(out).settings(), steps=6)) == run.DONE
    (_, before, _), (step, after, _) = rows(out)
    assert (step, before) == (4, first["version"])
    assert after != before
    assert RunDir(out).read_record()["versions"] == [first]
    capsys.readouterr()
    assert main(["audit", str(out), "--json"]) == 0
    assert [row["version"] for row in json.loads(capsys.readouterr().out)["versions"]] == [
        before,
        after,
    ]


def test_versions_are_no_part_of_the_samples(tmp_path: Path) -> None:
    root = written(tmp_path / "data")
    first = started(root, tmp_path / "a")
    moved(root)
    assert started(root, tmp_path / "b") != first
    one, two = (final_tensors(tmp_path / name) for name in "ab")
    assert all(bool((one[name] == two[name]).all()) for name in one)


def test_refusal_of_changed_local_files_names_the_version(tmp_path: Path) -> None:
    root = written(tmp_path / "data")
    out = tmp_path / "r"
    version = started(root, out)["version"]
    config = replace(RunDir(out).settings(), steps=6)
    moved(root, 2.0)
    with refused(version, "--data.changed-files", kind=ConfigError):
        run.resume(config)
    shutil.rmtree(root)
    written(root, (*LENGTHS[:3], 9, *LENGTHS[4:]))
    with refused(version, "restore", kind=ConfigError):
        run.resume(config)


def test_update_records_the_version_with_the_new_episodes(tmp_path: Path) -> None:
    root = written(tmp_path / "data", LENGTHS[:8])
    out = tmp_path / "r"
    first = started(root, out)["version"]
    shutil.rmtree(root)
    written(root, (*LENGTHS, *LENGTHS[:6]))
    config = RunDir(out).settings()
    assert run.resume(replace(config, steps=8, data=replace(config.data, update=True))) == run.DONE
    (_, before, _), (step, after, _) = rows(out)
    assert (before, step) == (first, 4)
    shutil.rmtree(root)
    written(root, (*LENGTHS[:3], 9, *LENGTHS[4:], *LENGTHS[:6]))
    with refused(after, kind=ConfigError):
        run.resume(replace(config, steps=10))


def test_refusal_names_the_publication_that_is_read_again(tmp_path: Path) -> None:
    place = tmp_path / "all"
    out = tmp_path / "r"
    assert main(["publish", str(written(tmp_path / "writer")), str(place)]) == 0
    address = f"{place}@000001"
    assert started(place, out) == {
        "source": "all",
        "version": "publication 000001",
        "address": address,
    }
    assert main(["order", "export", str(out), str(tmp_path / "order.parquet")]) == 0
    (stated,) = OrderFile(tmp_path / "order.parquet").facts["datasets"]
    assert (stated["version"], stated["address"]) == ("publication 000001", address)
    store = place.with_name(".all.versions")
    shutil.copytree(store / "000001", store / "000002", symlinks=True)
    info = store / "000002/meta/info.json"
    content = json.loads(info.read_text())
    info.unlink()
    info.write_text(json.dumps(content | {"fps": content["fps"] * 2}))
    place.unlink()
    place.symlink_to(f"{store.name}/000002")
    with refused(
        "publication 000001", "publication 000002", f"--data.root {address}", kind=ConfigError
    ):
        run.resume(replace(RunDir(out).settings(), steps=6))
    assert main(["resume", str(out), "--steps", "6", "--data.root", address]) == 0
    assert rows(out) == [(0, "publication 000001", address)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    files = {
        path.lstrip("/"): data for path, data in folder(written(tmp_path / "data"), "").items()
    }
    with HubServer(files) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


def test_refusal_names_the_commit_that_is_read_again(hub: HubServer, tmp_path: Path) -> None:
    out = tmp_path / "r"
    commit = hub.main
    address = f"hf://datasets/{REPO}@{commit}"
    changes: dict[str, Any] = {"cache": str(tmp_path / "cache")}
    config = override(
        tiny_config(Path("set"), out, **SHORT), data={"root": f"hf://datasets/{REPO}", **changes}
    )
    assert run.train(config) == run.DONE
    (version,) = RunDir(out).read_record()["versions"]
    assert version == {
        "source": version["source"],
        "version": f"commit {commit}",
        "address": address,
    }
    moved(tmp_path / "data", 2.0)
    hub.push({path.lstrip("/"): data for path, data in folder(tmp_path / "data", "").items()})
    with refused(f"commit {commit}", hub.main, f"--data.root {address}", kind=ConfigError):
        run.resume(replace(RunDir(out).settings(), steps=6))
    assert main(["resume", str(out), "--steps", "6", "--data.root", address]) == 0
    assert rows(out) == [(0, f"commit {commit}", address)]
