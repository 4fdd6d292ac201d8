"""The table "Where a new X goes" of docs/architecture.md: a thing of each kind, added as it says.

Policies, environments and commands of other packages have tests of their own, which the page links.
A line that the page puts into a file is here put into the table that the file defines.
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from av import VideoFrame
from av import open as open_container

import understudy as us
from understudy.testing.docs import ROOT
from understudy.train.checkpoint import export
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format import catalog, layouts
from understudy_data.load.images import source_facts
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_data.testing.videos import container_decode, moving_pictures
from understudy_data.video import mp4
from understudy_data.video.packets import ContainerPackets, Mp4Packets, open_packets
from understudy_data.video.reader import open_video
from understudy_kit import main, validate
from understudy_kit.config.dataset import DatasetConfig
from understudy_kit.testing.packages import install
from understudy_tools.check import examine
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import RULES, Finding, Findings, Place, Rule
from understudy_tools.check.row_facts import RowFacts
from understudy_tools.imports import sources
from understudy_tools.imports.recording import Recording, Sample, Times, even_times
from understudy_tools.imports.settings import ImportMapping

PAGE = (ROOT / "docs/architecture.md").read_text()


def linked_sources(row: str) -> set[str]:
    """Paths of the source files that a row of the table links, below packages/."""
    (line,) = re.findall(rf"^\| {row} \|.*", PAGE, re.MULTILINE)
    return set(re.findall(r"\(\.\./packages/([^)]*/src/[^)]*\.py)\)", line))


# -- a rule of `check` -----------------------------------------------------------------------------


def test_a_rule_is_a_line_of_rules_and_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_values(facts: RowFacts) -> Findings:
        for episode in np.flatnonzero(facts.found % 2).tolist():
            yield Finding("values.even", "warning", "an odd number of rows", Place((episode,)))

    write_dataset(tmp_path / "set", Spec(lengths=(6, 9, 4), cameras=(), foreign=False))
    monkeypatch.setitem(RULES, "values.even", Rule("an episode has an even number of rows"))
    monkeypatch.setattr(examine, "check_values", check_values)  # called by `apply_rules`
    (finding,) = check_dataset(tmp_path / "set").findings
    assert (finding.rule, finding.place.episodes) == ("values.even", (1,))
    assert finding.fix
    main(["check", str(tmp_path / "set")])
    assert "values.even" in capsys.readouterr().out


# -- a selection of frames -------------------------------------------------------------------------


def test_the_fields_of_a_selection_are_spelled_in_the_files_of_the_page() -> None:
    """Besides them a sampler for torch has drops of its own."""
    sampler = "understudy-data/src/understudy_data/load/dataloader/episode_sampler.py"
    found = set()
    for path in (ROOT / "packages").glob("*/src/**/*.py"):
        if "testing" not in path.parts and "drop_n_first_frames" in path.read_text():
            found.add(path.relative_to(ROOT / "packages").as_posix())
    assert found - {sampler} == linked_sources("selection of frames")


# -- a codec ---------------------------------------------------------------------------------------


@pytest.fixture
def vp9(tmp_path: Path) -> Path:
    """A video in MP4 of a codec that the reader of sample tables does not list."""
    path = tmp_path / "vp9.mp4"
    with open_container(str(path), "w") as file:
        stream = file.add_stream("libvpx-vp9", rate=10, options={"g": "4", "cpu-used": "8"})
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        for picture in moving_pictures(9):
            file.mux(stream.encode(VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    return path


def test_a_codec_of_ffmpeg_is_read_and_a_line_makes_it_fast(
    vp9: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = container_decode(vp9)
    assert isinstance(open_packets(str(vp9)), ContainerPackets)
    np.testing.assert_array_equal(open_video(vp9).read(np.arange(9)), expected)
    monkeypatch.setitem(mp4._CODECS, b"vp09", ("vp9", b"vpcC"))
    assert isinstance(open_packets(str(vp9)), Mp4Packets)
    np.testing.assert_array_equal(open_video(vp9).read(np.arange(9)), expected)


def test_a_codec_costs_what_its_line_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(tmp_path / "set", Spec(codec="libx264"))
    data = us.EpisodeDataset(tmp_path / "set")
    before = source_facts.read_facts(data, None, False).decode_ms
    costs = source_facts._MS_PER_MEGAPIXEL
    monkeypatch.setitem(costs, "h264", 3 * costs["h264"])
    assert source_facts.read_facts(data, None, False).decode_ms == pytest.approx(3 * before)


# -- a format of datasets --------------------------------------------------------------------------


def test_a_version_of_lerobot_is_a_line_of_two_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec(lengths=(6, 9), cameras=()))
    edit_json(root / "meta/info.json", lambda info: info.update(codebase_version="v3.9"))
    with refused("v3.9", where="info.json"):
        us.Catalog.open(root)
    monkeypatch.setitem(layouts.LAYOUTS, "v3.9", layouts.V3)
    monkeypatch.setitem(catalog._MARKS, "v3.9", catalog._MARKS["v3.1"])
    assert us.Catalog.open(root).version == "v3.9"
    assert len(us.EpisodeDataset(root)) == 15
    with pytest.raises(ConfigError, match="version"):  # the setting has a list of its own
        validate(DatasetConfig, {"root": str(root), "version": "v3.9"})


class NumpyRows(Recording):
    """A file of numpy: arrays with a row for each time."""

    def open(self) -> None:
        """Read the arrays."""
        self._arrays = dict(np.load(self.where))
        self.kinds = {key: str(array.dtype) for key, array in self._arrays.items()}

    def close(self) -> None:
        """Drop the arrays."""
        self._arrays.clear()

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Return even times."""
        assert self.rate is not None
        return {key: Times(even_times(len(self._arrays[key]), self.rate)) for key in streams}

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield the rows."""
        for row in range(len(self._arrays[next(iter(streams))])):
            for key in streams:
                yield key, row, lambda key=key, row=row: self._arrays[key][row]  # type: ignore[misc]


def test_a_format_to_import_is_a_recording_and_a_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_numpy(path: Path, mapping: ImportMapping) -> tuple[list[Recording], str]:
        return [NumpyRows(str(path), path.stat().st_size, mapping.source_fps)], "numpy"

    monkeypatch.setattr(sources, "_kind", lambda path: "numpy" * (path.suffix == ".npz"))
    monkeypatch.setattr(sources, "zarr_episodes", read_numpy)  # of the branch in `open_sources`
    actions = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savez(tmp_path / "arm.npz", command=actions, joints=actions + 1)
    (tmp_path / "arm.yaml").write_text(
        "source_fps: 10\ntask: wave\nfeatures:\n  action: command\n  observation.state: joints\n"
    )
    words = [str(tmp_path / name) for name in ("arm.npz", "set")]
    assert main(["import", *words, "--mapping", str(tmp_path / "arm.yaml"), "--fps", "10"]) == 0
    data = us.EpisodeDataset(tmp_path / "set")
    np.testing.assert_array_equal(np.stack([data[row]["action"] for row in range(6)]), actions)


# -- a format of exports ---------------------------------------------------------------------------

WRITE_NAME = """
def write_name(config):
    print(f"{config.format} of {config.run}")
"""


def test_a_format_of_exports_is_an_entry_point_and_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        tmp_path, "paper-1", "[understudy.formats]\npaper = toys_paper:write_name\n", WRITE_NAME
    )
    monkeypatch.syspath_prepend(tmp_path)
    export.export(export.ExportConfig("runs/a", format="paper"))  # type: ignore[arg-type]
    assert capsys.readouterr().out == "paper of runs/a\n"
    # the setting has a list of its own
    assert main(["export", "runs/a", "--format", "paper"]) == 2
    assert "--format: must be one of" in capsys.readouterr().err
