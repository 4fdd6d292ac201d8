"""The same samples from https://, s3://, the hub and any other driver as from this machine."""

import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from understudy.testing.runs import same_run, tiny_config, tiny_dataset
from understudy_base import DatasetError, MissingFileError, SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy, TransientError
from understudy_data.storage.remote_store import call_driver
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.hub import REPO, HubServer
from understudy_data.testing.servers import RangeServer, folder
from understudy_data.testing.videos import container_decode, write_video
from understudy_data.video.reader import open_video
from understudy_kit import dump_yaml
from understudy_kit.cli import main

TOP = "observation.images.top"
SIDE_CAM = "observation.images.side"
QUICK = RetryPolicy(deadline=120.0, stall=60.0, initial_backoff=0.001, max_backoff=0.01)


@pytest.fixture(scope="module", params=["v2.1", "v3.0"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with all kinds of features: two cameras, images in the rows, text."""
    path = tmp_path_factory.mktemp("sites") / request.param
    write_dataset(
        path,
        Spec(
            version=request.param, lengths=(4, 3, 5, 2), cameras=(TOP, SIDE_CAM), rich=True, gop=3
        ),
    )
    return path


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """Storage options of an S3 server with an empty bucket `set`."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "who", "secret": "what", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("web-set")
    yield options
    server.stop()


def same(there: Catalog, here: Path) -> None:
    """Compare all samples, in batches and from a pickle, and the reports of the catalogs."""
    local = Catalog.open(here)
    assert there.report() == local.report()
    assert there.camera_keys == local.camera_keys
    ours = EpisodeDataset(there)
    theirs = EpisodeDataset(local)
    assert len(ours) == len(theirs)
    for data in (ours, pickle.loads(pickle.dumps(ours))):
        got, wanted = (one.batch(*one.locate(np.arange(len(one)))) for one in (data, theirs))
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            assert (
                torch.equal(got[key], value)
                if isinstance(value, torch.Tensor)
                else got[key] == value
            ), key
    there.files.close()


def test_https_gives_the_local_samples(root: Path, tmp_path: Path) -> None:
    with RangeServer(folder(root, "/a b/set")) as server:
        same(
            Catalog.open(
                f"{server.url}/a%20b/set/", RemoteOptions(cache=str(tmp_path), retry=QUICK)
            ),
            root,
        )
        assert server.sent <= sum(map(len, folder(root).values())), "no byte twice"
    with refused("'color'", where="/x", fix="headers, verify"):
        Catalog.open(
            "https://127.0.0.1:1/x",
            RemoteOptions(storage_options={"color": 1}, cache=str(tmp_path)),
        )


def test_s3_gives_the_local_samples(root: Path, tmp_path: Path, s3: dict[str, Any]) -> None:
    fs = fsspec.filesystem("s3", **s3)
    fs.put(f"{root}/", f"web-set/{root.name}/", recursive=True)
    remote = RemoteOptions(storage_options=s3, cache=str(tmp_path), retry=QUICK)
    same(Catalog.open(f"s3://web-set/{root.name}", remote), root)
    with refused(where="s3://web-set/nowhere/meta/info.json", kind=MissingFileError):
        Catalog.open("s3://web-set/nowhere", remote)
    fs.pipe(f"web-set/{root.name}/large", os.urandom(200_000))
    catalog = Catalog.open(f"s3://web-set/{root.name}", remote)
    path = catalog.video_path(TOP, 0)
    source = catalog.files.source(path)
    fs.pipe(f"web-set/{root.name}/{path}", os.urandom(source.size))
    large = catalog.files.source("large")
    fs.pipe(f"web-set/{root.name}/large", os.urandom(200_000))
    with refused("changed", where="large", kind=SourceError):
        large.read(100_000, 10)
    with refused(where=path, kind=SourceError):  # the latter in another second
        pickle.loads(pickle.dumps(source))


def test_hub_gives_the_local_samples_at_one_commit(root: Path, tmp_path: Path) -> None:
    files = {path.lstrip("/"): data for path, data in folder(root, "/inside").items()}
    with HubServer(files, token="secret") as hub:

        def opened(address: str, token: str = "secret") -> Catalog:
            options = {"endpoint": hub.url, "token": token}
            return Catalog.open(
                address, RemoteOptions(storage_options=options, cache=str(tmp_path), retry=QUICK)
            )

        first = hub.main
        address = f"hf://datasets/{REPO}/inside"
        catalog = opened(address)
        same(catalog, root)
        hub.push(
            {path: data[::-1] for path, data in files.items()}
        )  # `main` moves during the run; the run's commit does not
        copy = pickle.loads(pickle.dumps(catalog))
        same(copy, root)
        fresh = Files(
            address,
            RemoteOptions(
                storage_options={"endpoint": hub.url, "token": "secret"}, cache=str(tmp_path)
            ),
        )
        name = "meta/info.json"
        assert fresh.read(name) == (root / name).read_bytes()[::-1]
        assert fresh.source(name).tag != catalog.files.source(name).tag
        same(opened(f"hf://datasets/{REPO}@{first}/inside"), root)
        with refused(404, where="hf://datasets/me/other", fix="HF_TOKEN"):
            opened("hf://datasets/me/other")
        with refused(404, "folder", "hf://datasets/me/other", where="me/other", fix="HF_TOKEN"):
            opened("me/other")
        hub.push({path.removeprefix("inside/"): data for path, data in files.items()})
        same(opened(REPO), root)
        with refused(where="me/set/inside", fix="HF_TOKEN"):
            opened(address, token="wrong")
        served = [asked.path for asked in hub.log if asked.status == 302]
        assert len(served) <= 4 * len(files), "a file is resolved once, not for every span"


@pytest.mark.long
def test_fsspec_driver_gives_the_local_samples(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory://` represents all fsspec drivers; its responses carry no version, which is requested
    after each.
    """
    fs = fsspec.filesystem("memory")
    fs.put(f"{root}/", f"/{root.name}/", recursive=True)
    remote = RemoteOptions(cache=str(tmp_path), retry=QUICK)
    same(Catalog.open(f"memory://{root.name}", remote), root)
    fs.pipe("/changing/a", b"1" * 100)
    source = Files("memory://changing", remote).source("a")
    assert source.read(0, 10) == b"1" * 10
    fs.pipe("/changing/a", b"2" * 100)
    with refused("changed", where="memory://changing/a", kind=SourceError):
        source.read(20, 10)
    plain = type(fs).cat_file
    lengths = iter([0, 3, 200, 5])  # nothing, too short, too long, then right

    def odd(self: Any, path: str, start: int, end: int) -> bytes:
        count = next(lengths, end - start)
        return bytes(200) if count == 200 else plain(self, path, start, start + count)

    monkeypatch.setattr(type(fs), "cat_file", odd)
    source = Files("memory://changing", remote).source("a")
    assert source.read(50, 20) == b"2" * 20
    with refused(where="nowhere", kind=MissingFileError):
        Files("memory://changing", remote).source("nowhere")
    monkeypatch.setattr(
        type(fs), "info", lambda self, path: {"name": path, "size": 100, "type": "file"}
    )
    with refused("checksum", where="memory://changing/a"):
        Files("memory://changing", remote).source("a")


def _answered(status: int) -> OSError:
    """Make an error as `requests` raises it, with the response attached."""
    error = OSError(f"{status} Error")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileNotFoundError("a"), (MissingFileError,)),
        (_answered(404), (MissingFileError,)),
        (IsADirectoryError("a"), (DatasetError, "folder")),
        (PermissionError("Forbidden"), (SourceError, "PermissionError", "Forbidden")),
        (_answered(403), (SourceError, 403)),
        (ValueError("no such region"), (DatasetError, "ValueError", "region")),
        (_answered(503), (TransientError, 503)),
        (TimeoutError(), (TransientError, "TimeoutError")),
    ],
    ids=lambda value: repr(value) if isinstance(value, Exception) else "",
)
def test_call_driver_sorts_errors_into_transient_and_permanent(
    error: Exception, expected: tuple[Any, ...]
) -> None:
    def act() -> None:
        raise error

    with refused(*expected[1:], kind=expected[0]):
        call_driver(act)


def test_fragmented_mp4_is_read_remotely(tmp_path: Path) -> None:
    """A fragmented mp4 is fetched completely, through the same cache, and decoded as from disk."""
    options = {"movflags": "frag_keyframe+empty_moov"}
    path = write_video(tmp_path / "fragmented.mp4", "h264-bframes", container=options)
    with RangeServer({"/set/a.mp4": path.read_bytes()}) as server:
        files = Files(
            f"{server.url}/set", RemoteOptions(cache=str(tmp_path / "cache"), retry=QUICK)
        )
        video = open_video(files.source("a.mp4"))
        assert np.array_equal(video.read(np.arange(video.count)), container_decode(path))
        assert server.sent == path.stat().st_size


@pytest.mark.long
def test_train_command_reads_a_remote_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tiny_dataset(tmp_path / "data")
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(tiny_config(data, tmp_path / "run", steps=2)))
    # the folder's name labels the losses
    with RangeServer(folder(data, f"/{data.name}")) as server:
        there = f"{server.url}/{data.name}"
        assert main.main(["check", there, "--depth", "metadata", "--json"]) == 0
        assert '"episodes": 10' in capsys.readouterr().out
        for root, out in ((str(data), tmp_path / "here"), (there, tmp_path / "there")):
            more = [
                "--data.root",
                root,
                "--data.cache",
                str(tmp_path / "cache"),
                "--output-dir",
                str(out),
            ]
            assert main.main(["train", str(file), *more]) == 0
        assert server.sent
    assert (tmp_path / "cache" / "v1").is_dir()
    same_run(tmp_path / "here", tmp_path / "there")
