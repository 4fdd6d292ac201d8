"""Missing files: cameras, episodes, git LFS pointers, and paths outside the dataset."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from understudy_base import DatasetError, LfsPointerError, MissingFileError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import (
    EpisodeTable,
    FileTable,
    Videos,
    find_missing,
    has_any_file,
)
from understudy_data.storage.remote_options import RemoteOptions
from understudy_data.testing.datasets import Spec, edit_json, identity, write_dataset
from understudy_data.testing.servers import RangeServer, folder
from understudy_tools.check.examine import check_dataset

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32\n"
    b"size 12345\n"
)
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("complete")
    for version in ("v2.1", "v3.0"):
        write_dataset(
            root / version,
            Spec(version=version, lengths=(3, 4, 2), cameras=(TOP, WRIST), foreign=False),
        )
    return root


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Make:
    def make(version: str) -> Path:
        shutil.copytree(written / version, tmp_path / version)
        return tmp_path / version

    return make


def template(root: Path, path: str) -> None:
    edit_json(root / "meta/info.json", lambda info: info.update(video_path=path))


AS_V2 = "videos/chunk-{chunk_index:03d}/{video_key}/file-{file_index:03d}.mp4"


def laid_out_as_v2(root: Path) -> Path:
    """The videos of a v3.0 dataset in the folders of v2.1, which its template says."""
    for camera in (TOP, WRIST):
        for video in sorted((root / "videos" / camera).rglob("*.mp4")):
            place = root / "videos" / video.parent.name / camera
            place.mkdir(parents=True, exist_ok=True)
            video.rename(place / video.name)
        shutil.rmtree(root / "videos" / camera)
    template(root, AS_V2)
    return root


def test_missing_files_a_camera_is_looked_for_where_the_template_points(
    copy: Make, tmp_path: Path
) -> None:
    """A v3.0 dataset in the folders of v2.1: the same cameras from a folder and from a server that
    lists nothing.
    """
    root = laid_out_as_v2(copy("v3.0"))
    catalog = Catalog.open(root)
    assert (catalog.camera_keys, catalog.skipped_features, catalog.metadata_notes()) == (
        (TOP, WRIST),
        {},
        [],
    )
    assert identity(EpisodeArrays(catalog)[0][WRIST]) == (1, 0, 0)
    for camera in (WRIST, TOP):
        with RangeServer(folder(root)) as server:
            there = Catalog.open(server.url, RemoteOptions(cache=str(tmp_path / f"cache {camera}")))
        assert there.camera_keys == Catalog.open(root).camera_keys
        assert there.cameras_without_files == Catalog.open(root).cameras_without_files
        for place in (root / "videos").glob(f"*/{camera}"):
            shutil.rmtree(place)
    assert Catalog.open(root).cameras_without_files == (TOP, WRIST)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_missing_files_a_folder_that_is_almost_the_templates_is_named(
    copy: Make, version: str
) -> None:
    root = copy(version)
    (root / "videos").rename(root / "video")
    catalog = Catalog.open(root)
    assert set(catalog.cameras_without_files) == set(catalog.skipped_features) == {TOP, WRIST}
    assert all("there is video/" in why for why in catalog.skipped_features.values())
    told = str(catalog.info["video_path"]).replace("videos/", "video/", 1)
    there = Catalog.open(root, video_path=told)
    assert (there.camera_keys, there.cameras_without_files) == ((TOP, WRIST), ())
    assert identity(EpisodeArrays(there)[0][TOP]) == (0, 0, 0)


def test_missing_files_one_file_of_a_camera_is_enough_to_be_there(copy: Make) -> None:
    root = copy("v2.1")
    for video in sorted((root / "videos").rglob(f"{WRIST}/*.mp4"))[:-1]:
        video.unlink()
    catalog = Catalog.open(root)
    assert catalog.cameras_without_files == ()
    found = catalog.missing_files([WRIST])
    assert found is not None
    assert [(gap.kind, gap.rows.tolist()) for gap in found] == [(WRIST, [0, 1])]
    assert catalog.missing_files([TOP]) == []


class Elsewhere:
    """Files that are not on this machine: the names that are there; `listable` says whether folders
    can be listed.
    """

    cache = ""

    def __init__(self, there: set[str], listable: bool) -> None:
        self.is_local, self.root, self.listed = False, "s3://bucket/d", list[str]()
        self.there = there
        self.listable = listable

    def exists(self, path: str) -> bool:
        return path in self.there

    def entries(self, under: str) -> list[tuple[str, bool]] | None:
        self.listed.append(under)
        names = [path.rpartition("/")[2] for path in self.there if path.rpartition("/")[0] == under]
        return [(name, False) for name in names] if self.listable else None


def test_missing_files_one_of_many_files_elsewhere_is_enough_where_folders_can_be_listed() -> None:
    """A few that are asked for may all be absent: an upload under way is no camera without
    files.
    """
    count = 5000
    every = np.arange(count)
    zeros = np.zeros(count, np.int64)
    table = FileTable(
        "v/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.mp4", every // 1000, every
    )
    videos = Videos(table, every, zeros, np.zeros(count), zeros + 9)
    there = Elsewhere({table.path(1234)}, listable=True)
    assert has_any_file(there, videos)  # type: ignore[arg-type]
    assert not has_any_file(Elsewhere(set(), listable=True), videos)  # type: ignore[arg-type]
    hidden = Elsewhere(set(), listable=False)
    assert not has_any_file(hidden, videos)  # type: ignore[arg-type]
    assert len(hidden.listed) == 1


def test_missing_files_folders_that_cannot_be_listed_are_tried_once() -> None:
    """Each try is a request, and a dataset of a million episodes has a thousand folders."""
    count = 5000
    every = np.arange(count)
    data = FileTable(
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet", every // 1000, every
    )
    table = EpisodeTable(every, every + 1, every, data, every, every)
    files = Elsewhere(set(), listable=False)
    assert find_missing(files, table, []) is None  # type: ignore[arg-type]
    assert len(files.listed) == 1


def test_missing_files_a_version_can_be_given_when_a_dataset_is_opened(copy: Make) -> None:
    root = copy("v2.1")
    edit_json(root / "meta/info.json", lambda info: info.update(codebase_version="v7.0"))
    with refused("codebase_version", "'v7.0'", where="info.json", fix="v3.0"):
        Catalog.open(root)
    catalog = Catalog.open(root, version="v2.1")
    assert (catalog.version, len(catalog.episodes)) == ("v2.1", 3)
    with refused("codebase_version", "'v9'", where="v2.1", fix="v3.0"):
        Catalog.open(root, version="v9")


@pytest.mark.parametrize(
    "path", ["../{video_key}.mp4", "v/{video_key!r}.mp4", "v/{nothing}.mp4", "/v/{video_key}.mp4"]
)
def test_missing_files_a_template_that_is_given_and_cannot_be_used_is_refused(
    copy: Make, path: str
) -> None:
    with refused("video_path", repr(path), where="v3.0", fix="video_key"):
        Catalog.open(copy("v3.0"), video_path=path)


HOSTILE = [
    "{chunk_index:c}{chunk_index:c}/outside-{file_index}.parquet",
    "data/{chunk_index:200000000d}/file-{file_index:03d}.parquet",
    "data/{chunk_index.__class__.__mro__}/file-{file_index:03d}.parquet",
    "data/{chunk_index!r}/file-{file_index:03d}.parquet",
    "data/{file_index[0]}.parquet",
    "data/{chunk_index:{file_index}d}.parquet",
    "data/../../x-{file_index:03d}.parquet",
    "data/\0{file_index:03d}.parquet",
    "/data/{file_index:03d}.parquet",
]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("name", ["data_path", "video_path"])
def test_missing_files_a_template_of_a_stranger_is_no_format_string(
    copy: Make, name: str, path: str
) -> None:
    """It is passed over, with a line about it, and the files are where the format has them."""
    root = copy("v3.0")
    edit_json(root / "meta/info.json", lambda info: info.update({name: path}))
    catalog = Catalog.open(root)
    assert (root / catalog.data_path(0)).is_file()
    assert (root / catalog.video_path(TOP, 0)).is_file()
    assert any(name in line and "cannot be used" in line for line in catalog.report())


@pytest.mark.parametrize(
    "key", ["../../secret", "/secret", "a/../../secret", "..", "se\0cret", "", "two\nlines"]
)
@pytest.mark.parametrize("dtype", ["video", "image", "float32"])
def test_missing_files_a_feature_that_is_called_like_a_path_is_refused(
    copy: Make, key: str, dtype: str
) -> None:
    root = copy("v3.0")
    outside = root.parent / "secret/chunk-000"
    outside.mkdir(parents=True)
    shutil.copy(root / "videos" / TOP / "chunk-000/file-000.mp4", outside / "file-000.mp4")
    entry = {"dtype": dtype, "shape": [64, 64, 3], "names": None}
    edit_json(root / "meta/info.json", lambda info: info["features"].update({key: entry}))
    with refused("features", repr(key), where="info.json"):
        Catalog.open(root)


def test_missing_files_a_camera_with_a_slash_in_its_name_is_refused(copy: Make) -> None:
    root = copy("v3.0")
    entry = {"dtype": "video", "shape": [64, 64, 3], "names": None}
    edit_json(
        root / "meta/info.json", lambda info: info["features"].update({"observation/top": entry})
    )
    with refused("observation/top", where="info.json"):
        Catalog.open(root)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("pattern", ["*.parquet", "*.mp4"])
def test_missing_files_git_lfs_pointers_are_called_that_and_counted(
    copy: Make, version: str, pattern: str
) -> None:
    """One line for all files of a kind, with the remedy; no line about each of them."""
    root = copy(version)
    files = [file for file in root.rglob(pattern) if "meta" not in file.parts]
    for file in files:
        file.write_bytes(POINTER)
    findings = check_dataset(str(root), "none", show_progress=False).findings
    lines = [finding.message for finding in findings if finding.rule == "files.missing"]
    assert len(lines) == (1 if pattern == "*.parquet" else 2)  # two cameras
    assert all("git LFS pointers" in line and "git lfs pull" in line for line in lines)
    count = len(files) if pattern == "*.parquet" else len(files) // 2 if version == "v2.1" else None
    assert count is None or all(f"{count} of {count} files" in line for line in lines)
    with refused(where=")", fix="git lfs pull", kind=LfsPointerError):
        EpisodeArrays(root)[0]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v2.1", "meta/info.json"),
        ("v2.1", "meta/episodes.jsonl"),
        ("v3.0", "meta/tasks.parquet"),
        ("v3.0", "meta/episodes/chunk-000/file-000.parquet"),
    ],
)
def test_missing_files_a_pointer_in_the_metadata_is_called_that(
    copy: Make, version: str, name: str
) -> None:
    root = copy(version)
    (root / name).write_bytes(POINTER)
    with refused(where=name, fix="git lfs pull", kind=LfsPointerError) as caught:
        Catalog.open(root)
    assert str(caught.value.where).endswith(name)


def test_missing_files_a_pointer_in_place_of_a_image_is_called_that(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_dataset(tmp_path / "d", Spec(lengths=(2,), cameras=(), images=(TOP,), foreign=False))
    (tmp_path / "d/images").mkdir()
    (tmp_path / "d/images/0.png").write_bytes(POINTER)
    [file] = (tmp_path / "d/data").rglob("*.parquet")
    table = pq.read_table(file)
    at = table.column_names.index(TOP)
    kind = table.schema.field(at).type
    links = pa.array([{"bytes": None, "path": "images/0.png"}] * len(table), kind)
    pq.write_table(table.set_column(at, TOP, links), file)
    with refused(where="0.png", fix="git lfs pull", kind=LfsPointerError):
        EpisodeArrays(tmp_path / "d")[0]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_missing_files_the_gop_does_not_depend_on_which_video_is_absent(
    copy: Make, gone: int
) -> None:
    root = copy("v2.1")
    whole = EpisodeArrays(root, keys=[TOP]).gop
    sorted((root / "videos").rglob(f"{TOP}/*.mp4"))[gone].unlink()
    assert EpisodeArrays(root, keys=[TOP]).gop == whole
    for video in (root / "videos").rglob(f"{TOP}/*.mp4"):
        video.write_bytes(b"")
    with pytest.raises(DatasetError):
        _ = EpisodeArrays(root, keys=[TOP]).gop


@pytest.mark.parametrize(("said", "odd"), [("mp4v", False), ("mpeg4", False), ("h264", True)])
def test_missing_files_names_of_one_codec_are_one(tmp_path: Path, said: str, odd: bool) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(3,), codec="mpeg4", foreign=False))
    edit_json(
        tmp_path / "d/meta/info.json",
        lambda info: info["features"][TOP]["info"].update({"video.codec": said}),
    )
    findings = check_dataset(str(tmp_path / "d"), "sample", show_progress=False).findings
    assert any("codec" in finding.message for finding in findings) == odd


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        ("data/**/file-000.parquet", MissingFileError),
        (f"videos/{TOP}/**/file-000.mp4", DatasetError),
    ],
)
def test_missing_files_a_packed_file_is_not_taken_for_another_of_its_name(
    tmp_path: Path, pattern: str, kind: type[DatasetError]
) -> None:
    """In v3.0 numbers start anew in each chunk: another chunk has other episodes under that
    name.
    """
    spec = Spec(lengths=(3, 3, 3, 3, 3, 3), per_data_file=1, per_video_file=1, foreign=False)
    write_dataset(tmp_path / "d", spec)
    first, second = sorted((tmp_path / "d").glob(pattern))[:2]
    assert (first.name, first.parent) != (second.name, second.parent)
    first.unlink()
    data = EpisodeArrays(tmp_path / "d")
    with refused(where="(episode 0)", kind=kind):
        data[0]
    found = data.catalog.missing_files()
    assert found is not None
    assert [gap.rows.tolist() for gap in found] == [[0]]
