"""A resumed run notices changed data and video files, and accepts every honest copy."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.testing.runs import SHORT, tiny_config, tiny_dataset, trained_run
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import file_digests, open_data
from understudy_base import ConfigError
from understudy_data.datasets import used_files
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.used_files import UsedFiles
from understudy_data.storage import mapped_tables
from understudy_data.storage.dataset_root import Files
from understudy_data.testing.datasets import Spec, edit_column, write_dataset
from understudy_data.testing.servers import RangeServer
from understudy_kit import main

CAMERAS = ("observation.images.top",)


def digests(
    root: Path | str, cache: Path | None = None, spans: str = ""
) -> dict[str, list[str] | None]:
    config = tiny_config(Path("unused"), Path("unused"))
    data = replace(config.data, root=str(root), cache=spans, val_fraction=0.1)
    return file_digests(open_data(replace(config, data=data)), cache)


def other_actions(root: Path) -> list[Path]:
    """Every action becomes another one; rows, lengths and metadata stay."""
    found = sorted(root.glob("data/chunk-*/*.parquet"))
    for path in found:
        edit_column(path, "action", lambda rows: [row * 1000 + 7 for row in rows])
    return found


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("files") / "run", **SHORT)


def test_resume_refuses_changed_actions(
    begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(begun, tmp_path / "run")
    shutil.copytree(RunDir(begun).settings().data.root, tmp_path / "d")
    settings = RunDir(tmp_path / "run").settings()
    moved = replace(settings, steps=5, data=replace(settings.data, root=str(tmp_path / "d")))
    [path, *_] = other_actions(tmp_path / "d")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    call = ["resume", str(tmp_path / "run"), "--steps", "5", "--data.root", str(tmp_path / "d")]
    assert main(call) == 2
    assert str(path.relative_to(tmp_path / "d")) in capsys.readouterr().err
    assert main(["validate", str(tmp_path / "run")]) == 0  # on the dataset that it has
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before
    accepted = replace(moved, data=replace(moved.data, changed_files="accept"))
    assert run.resume(accepted) == run.DONE
    assert path.name in capsys.readouterr().err


def test_resume_refuses_another_video_and_accepts_a_copy(begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path / "run")
    shutil.copytree(RunDir(begun).settings().data.root, tmp_path / "d")
    for path in (tmp_path / "d").rglob("*"):
        os.utime(path, (1, 1))
    settings = RunDir(tmp_path / "run").settings()
    moved = replace(settings, steps=5, data=replace(settings.data, root=str(tmp_path / "d")))
    assert run.resume(moved) == run.DONE
    videos = sorted((tmp_path / "d").glob("videos/*/chunk-*/*.mp4"))
    shutil.copy(videos[0], videos[1])
    with pytest.raises(ConfigError, match=videos[1].name):
        run.resume(replace(moved, steps=6))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_changed_file_is_named(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used_files, "SAMPLE", 2)
    write_dataset(
        tmp_path / "d", Spec(version=version, lengths=(4,) * 12, per_data_file=1, per_video_file=1)
    )
    before = digests(tmp_path / "d")
    for kind in ("data/*/*.parquet", "videos/*/*/*.mp4"):
        path = sorted((tmp_path / "d").glob(kind))[5]
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
        now = digests(tmp_path / "d")
        [name] = UsedFiles.changed_kinds(before, now)
        assert str(path.relative_to(tmp_path / "d")) in UsedFiles.describe_change(
            before[name] or [], now[name] or []
        )
        path.write_bytes(whole)
    assert digests(tmp_path / "d") == before


def test_large_datasets_are_compared_by_footers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used_files, "MAX_WHOLE", 0)
    tiny_dataset(tmp_path / "d")
    before = digests(tmp_path / "d")
    other_actions(tmp_path / "d")
    assert set(UsedFiles.changed_kinds(before, digests(tmp_path / "d"))) == {
        "data files",
        "a sample of the data files",
    }


def test_a_changed_byte_inside_a_video_is_noticed_up_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_dataset(tmp_path / "d")
    before = digests(tmp_path / "d")
    path = sorted((tmp_path / "d").glob("videos/*/*/*.mp4"))[0]
    whole = path.read_bytes()
    middle = len(whole) // 2
    monkeypatch.setattr(used_files, "ENDS", middle // 2)
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    [name] = [
        name
        for name in UsedFiles.changed_kinds(before, digests(tmp_path / "d"))
        if "sample" not in name
    ]
    assert name.startswith("the contents of the video files")
    sizes = {
        key.removeprefix("the contents of the "): [f"{path} 1"]
        for key in before
        if "contents" in key
    }
    assert sizes
    assert not UsedFiles.changed_kinds(sizes, before)  # a run that recorded sizes resumes
    monkeypatch.setattr(used_files, "MAX_VIDEOS", 0)
    large = digests(tmp_path / "d")
    path.write_bytes(whole)
    assert UsedFiles.changed_kinds(large, digests(tmp_path / "d")) == []


def test_digests_are_cached_until_a_file_changes(tmp_path: Path) -> None:
    """A digest that was altered in the cache comes back until its file changes."""
    tiny_dataset(tmp_path / "d")
    first = digests(tmp_path / "d", tmp_path / "cache")
    assert digests(tmp_path / "d", tmp_path / "cache") == first == digests(tmp_path / "d")
    altered = 0
    for file in (tmp_path / "cache").rglob("*.json"):
        known = json.loads(file.read_text())
        altered += len(known)
        file.write_text(
            json.dumps(
                {path: [version, f"{digest}-cached"] for path, (version, digest) in known.items()}
            )
        )
    files = [
        path for kind in ("data", "videos/*") for path in (tmp_path / "d").glob(f"{kind}/chunk-*/*")
    ]
    assert altered == len(files)
    assert digests(tmp_path / "d", tmp_path / "cache") != first
    other_actions(tmp_path / "d")
    for path in (tmp_path / "d").rglob("*.mp4"):
        os.utime(path, (1, 1))
    assert digests(tmp_path / "d", tmp_path / "cache") == digests(tmp_path / "d") != first
    for torn in ("{", "[]", '{"x": 1}'):
        for file in (tmp_path / "cache").rglob("*.json"):
            file.write_text(torn)
        assert digests(tmp_path / "d", tmp_path / "cache") == digests(tmp_path / "d")


def test_remote_copy_is_the_same_dataset(tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "d")
    with RangeServer(tmp_path) as server:
        there = digests(f"{server.url}/d", spans=str(tmp_path / "spans"))
        here = digests(tmp_path / "d")
        assert UsedFiles.changed_kinds(here, there) == UsedFiles.changed_kinds(there, here) == []
        assert [name for name, found in there.items() if found is not None]
        other_actions(tmp_path / "d")
    with RangeServer(tmp_path) as server:
        assert UsedFiles.changed_kinds(
            here, digests(f"{server.url}/d", spans=str(tmp_path / "spans"))
        ) == ["a sample of the data files"]


def test_digests_of_many_small_datasets_are_kept_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tables, "GROUP", 2)
    roots = [tmp_path / f"set-{number}" for number in range(9)]
    for root in roots:
        write_dataset(root, Spec(lengths=(6, 9)))

    def used() -> list[UsedFiles]:
        return [UsedFiles([EpisodeDataset(root)], CAMERAS) for root in roots]

    cache = tmp_path / "cache"
    read = list[str]()
    whole = used_files._whole

    def counted(files: Files, path: str) -> str:
        read.append(f"{files.root}/{path}")
        return whole(files, path)

    monkeypatch.setattr(used_files, "_whole", counted)
    alone = [files.digests(None) for files in used()]
    read.clear()
    assert UsedFiles.digests_of_all(used(), cache) == alone
    assert len(read) >= 2 * len(roots)
    assert not (cache / "files").exists()
    read.clear()
    assert UsedFiles.digests_of_all(used(), cache) == alone
    assert read == []

    path = roots[3] / "data/chunk-000/file-000.parquet"
    content = bytearray(path.read_bytes())
    times = path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)  # of equal size and time
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = UsedFiles.digests_of_all(used(), cache)
    assert [number for number, digests in enumerate(changed) if digests != alone[number]] == [3]
    assert str(path) in read
    assert len({Path(name).relative_to(tmp_path).parts[0] for name in read}) < len(roots)

    path.unlink()
    lost = UsedFiles.digests_of_all(used(), cache)
    assert lost == [files.digests(None) for files in used()]
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert UsedFiles.digests_of_all(used(), cache) == alone
