"""A server that fails at any request of any work on a dataset is named as the cause: no file, row
or image of the dataset is called wrong, left out or replaced.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from understudy.testing.runs import tiny_config
from understudy.train.data.input_contract import make_contract
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy_base import SourceError
from understudy_data import Catalog, EpisodeDataset, Loader, Order
from understudy_data.datasets.check_files import FileCheck
from understudy_data.datasets.read.row_lengths import lengths_of_rows
from understudy_data.datasets.used_files import UsedFiles
from understudy_data.load.validation_data import ValidationData
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import Asked, RangeServer, folder
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit.write_set import write_outputs
from understudy_tools.testing.sensors import IMU, add_sensor, jittered

LENGTHS = (6, 9, 4, 7)
SILENCE = 0.4  # seconds
Work = Callable[[str, Path], object]


def open_catalog(url: str, out: Path, **options: str) -> Catalog:
    return Catalog.open(url, RemoteOptions(cache=str(out / "cache")), **options)


def open_dataset(url: str, out: Path) -> object:
    catalog = open_catalog(url, out, pairing="columns").with_view("#first")
    return catalog.report(), catalog.marks(["meta/info.json"]), catalog.episodes.ids.tolist()


def examine(url: str, out: Path) -> object:
    remote = RemoteOptions(cache=str(out / "cache"))
    return [str(finding) for finding in check_dataset(url, "all", remote=remote).findings]


def find_broken_files(url: str, out: Path) -> object:
    catalog = open_catalog(url, out)
    files = FileCheck(catalog)
    rows = np.arange(len(LENGTHS))
    found = [files.describe_unlisted([catalog.data_path(0)]), lengths_of_rows(catalog).tolist()]
    broken = files.broken_episodes(catalog.episodes.videos, ["action"], rows)
    return [*found, [str(gap) for gap in broken]]


def digest(url: str, out: Path) -> object:
    data = EpisodeDataset(open_catalog(url, out))
    return UsedFiles([data], data.video_keys).digests(out / "digests")


def load(url: str, out: Path) -> object:
    data = EpisodeDataset(open_catalog(url, out))
    order = Order.from_datasets([data], batch_size=4, seed=1, frames_in_flight=40)
    with Loader(
        [data], order=order, num_threads=1, memory="2MB", on_bad_frame="substitute"
    ) as loader:
        batches = [next(loader) for _ in range(5)]
    return [(batch["episode_index"].tolist(), batch["frame_index"].tolist()) for batch in batches]


def start_run(url: str, out: Path) -> object:
    config = tiny_config(Path("set"), out)
    config = replace(config, data=replace(config.data, root=url, cache=str(out / "cache")))
    data = open_data(config)
    normalization = compute_normalization(data, "mean_std")
    held_out = ValidationData.from_sources(data, mixed=False, skip_unreadable=True)
    assert held_out is not None
    unreadable = held_out.read(slice(0, 4))[ValidationData.UNREADABLE]
    return str(normalization), str(make_contract(config, data)), unreadable


def write_copy(url: str, out: Path) -> object:
    config = EditConfig(paths=(url, str(out / "copy")), skip_bad=True, drop_features=(IMU,))
    plans = make_plans(config, [open_catalog(url, out)], out / "copy")
    write_outputs(plans, out / "copy", ["understudy", "edit"])
    return Catalog.open(out / "copy").episodes.lengths.tolist()


def outcome_of(work: Work, url: str, out: Path) -> object:
    """Return the result of a work, or the failure of access that ended it."""
    try:
        return work(url, out)
    except SourceError as error:
        return error


WORKS: dict[str, Work] = {
    "open": open_dataset,
    "check": examine,
    "files": find_broken_files,
    "digest": digest,
    "load": load,
    "run": start_run,
    "edit": write_copy,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "set"
    write_dataset(path, Spec("v3.0", lengths=LENGTHS, gop=3, images=("observation.images.still",)))
    add_sensor(path, jittered(LENGTHS, 40))
    Catalog.open(path).views.save("first", {"episodes": [0, 1]}, {"episodes": 2})
    return path


@pytest.fixture(scope="module")
def sound(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[list[str], object]]:
    """Paths that a work asks of a server without a fault, in sequence, and its result."""

    @cache
    def worked(name: str) -> tuple[list[str], object]:
        with RangeServer(folder(root, "/set")) as server:
            result = WORKS[name](f"{server.url}/set", tmp_path_factory.mktemp(name))
            return [asked.path for asked in server.log], result

    return worked


@pytest.mark.parametrize("name", WORKS)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(["503", "403", "timeout"]))
def test_a_failure_of_access_is_no_fault_of_the_dataset(
    name: str,
    root: Path,
    sound: Callable[[str], tuple[list[str], object]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    failure: str,
) -> None:
    paths, result = sound(name)
    first = data.draw(st.integers(0, len(paths) - 1))
    answered = paths[:first].count(paths[first])  # requests for the file before it fails

    def fails(asked: Asked) -> bool:
        """Whether the answer to the newest request is a failure."""
        same = [one for one in server.log if one.path == paths[first]]
        return asked.path == paths[first] and len(same) > answered

    def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
        if failure == "timeout" or not fails(asked):
            return None
        return int(failure), {}, b"no"

    def fault(number: int, asked: Asked) -> str:
        return "silence" if failure == "timeout" and fails(asked) else ""

    with pytest.MonkeyPatch.context() as patch:
        if failure != "403":  # which is not asked again
            hurried = (0.05, SILENCE / 2, 0.01, 0.01, 16384.0)
            patch.setattr(RetryPolicy.__init__, "__defaults__", hurried)
        with RangeServer(folder(root, "/set"), fault, stall=SILENCE) as server:
            server.answer = answer
            outcome = outcome_of(WORKS[name], f"{server.url}/set", tmp_path_factory.mktemp(name))
    if isinstance(outcome, SourceError):
        assert outcome.transient == (failure != "403")
    else:
        assert outcome == result  # no answer that failed was needed
