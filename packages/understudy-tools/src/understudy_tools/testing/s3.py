"""Edits into a bucket of a real local S3 server (moto)."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from understudy_data import Catalog, RemoteOptions, Workers
from understudy_data.storage.remote_options import RetryPolicy
from understudy_tools.bucket import Bucket
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit.write_set import Written, write_outputs

SECRET = "secret-word"


@contextmanager
def s3_bucket(name: str) -> Iterator[RemoteOptions]:
    """Start a server with one empty bucket; skips the test without moto and fsspec."""
    fsspec = pytest.importorskip("fsspec")
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"key": "who", "secret": SECRET, "endpoint_url": f"http://{host}:{port}"}
    try:
        fsspec.filesystem("s3", **access).mkdir(name)
        retry = RetryPolicy(deadline=20, initial_backoff=0.001, max_backoff=0.01)
        yield RemoteOptions(storage_options=access, retry=retry)
    finally:
        server.stop()


def bucket_files(options: RemoteOptions, address: str) -> dict[str, bytes]:
    """All files below an address."""
    import fsspec

    fs = fsspec.filesystem("s3", **options.storage_options)
    fs.invalidate_cache()
    prefix = f"{address.removeprefix('s3://')}/"
    return {path.removeprefix(prefix): fs.cat_file(path) for path in fs.find(prefix)}


def upload(
    sources: Sequence[Path], address: str, options: RemoteOptions, workers: Workers, **settings: Any
) -> Written:
    """Run `understudy edit` into a bucket without its command line."""
    out = Bucket(address, options)
    config = EditConfig(paths=(*map(str, sources), address), **settings)
    plans = make_plans(config, list(map(Catalog.open, sources)), out)
    return write_outputs(plans, out, ["understudy", "edit"], workers)[""]


def uploaded(options: RemoteOptions, address: str) -> dict[str, bytes]:
    """All files but the command; compare with `edited.content`."""
    there = bucket_files(options, address)
    origin = json.loads(there.pop("meta/edit.json"))
    del origin["command"]
    return there | {"origin": json.dumps(origin).encode()}
