"""Datasets of several writers as one, to which each publication appends their new episodes.

    OUT -> .OUT.versions/000002        the dataset: a link, whose replacement is the publication
    .OUT.versions/000002/              its folder: own meta files, and a link to each of its `files`
                                       (`hf upload` leaves out linked folders)
    .OUT.versions/files/               files with rows, videos and the episode table, which never
                                       change; and views

So every reader finds the earlier version or the new one, also after a kill at any instant, and one
that has the earlier version open finds all its files. OUT@000002 is the address of that publication
(`storage/dataset_version.py`), as long as it is one of the latest `KEPT`. What else lies in the
store is left alone. Episodes keep their numbers and files. meta/published.json has a digest of each
writer's published episodes, and the metadata `writer` of an episode the name of its writer.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from understudy_base import DatasetError, EmptyDatasetError, split_view, sync
from understudy_data import DEFAULTS, Catalog, DatasetFiles, FileCheck, Rows, Workers
from understudy_tools.edit.annotations import piece_metadata
from understudy_tools.edit.features import common_features, common_rate, common_robot, edit_features
from understudy_tools.edit.plan import Base, Piece, Plan
from understudy_tools.edit.write_set import write_set
from understudy_tools.motion import numeric_keys

LEDGER = "meta/published.json"
"""File with the digests of the writers, relative to the root."""
_COPY = (
    "let its recorder finish or restore the files, or publish a copy with the listed episodes in a "
    "folder of its own: understudy edit {root} COPY --skip-bad"
)
LINK = "link"
"""Link to a version from before its folder is made until it is published, which moves the link to
OUT.
"""

DRAFT = "draft"
"""Folder in which new episodes are written."""
KEPT = 8
"""Latest versions whose folders stay, each of which has an address, OUT@NUMBER."""
_VERSION = re.compile(r"\d{6}")
_STORE = re.compile(r"\.(.+)\.versions")


def publish(roots: Sequence[str], out: Path, workers: Workers | None = None) -> dict[str, int]:
    """Append the new episodes of writers to the dataset at `out`, and return their number by
    writer.

    Without new episodes nothing changes.

    Args:
        roots: datasets of the writers, whose folders have different names. One that is recorded now
            has the episodes that are saved.
        out: the dataset; nothing, or one of earlier publications.
        workers: processes; None writes in this one.

    Raises:
        DatasetError: `out` is of another origin, a writer changed published episodes, or features
            differ.
    """
    store = out.parent / f".{out.name}.versions"
    names = [os.path.basename(os.path.abspath(root)) for root in roots]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DatasetError(
            f"two writers are named {twice[0]!r}",
            fix="rename the folder of one: it is known by its name",
        )
    _refuse_inside(out)
    for root in roots:
        _refuse_overlap(out, root)
    if os.path.lexists(out) and not (
        out.is_symlink() and Path(os.readlink(out)).parent.name == store.name
    ):
        raise DatasetError("was not published", where=out, fix="name a new folder")
    (store / "files").mkdir(parents=True, exist_ok=True)
    with _locked(store):
        if not out.is_symlink() and (used := _in_use(out, store)):
            fix = "give the link its name back, or name a new folder"
            raise DatasetError(
                "is gone, and its files are in use or were published",
                where=out,
                fix=f"{fix}: {used[0]}",
            )
        old = Catalog.open(out) if out.is_symlink() else None
        published = old.read_json(LEDGER) if old else {}
        writers = list[Catalog]()
        pieces = list[Piece]()
        added = dict.fromkeys(names, 0)
        for name, root in zip(names, roots):
            try:
                writer = Catalog.open(root)
            except EmptyDatasetError:  # its recording has just begun
                if name in published:
                    raise
                continue
            if writer.view is not None:
                raise DatasetError(
                    f"{writer.view} is a view", where=writer.root, fix="publish the whole dataset"
                )
            _check_finished(writer)
            new = writer.episodes.ids >= _first_new(writer, published.get(name, ""))
            rows = np.flatnonzero(new & (writer.episodes.lengths > 0)).tolist()
            number = len(writers) + (old is not None)
            writers.append(writer)
            pieces += [Piece(number, row, 0, int(writer.episodes.lengths[row])) for row in rows]
            added[name] = len(rows)
            published[name] = _digest(writer)
        if pieces:
            writer_of_episode = list(Counter(added).elements())
            plan = _plan(old, writers, pieces, writer_of_episode)
            _add_version(plan, old, published, store, out, workers or Workers())
        return added


def _refuse_inside(out: Path) -> None:
    """Raise DatasetError where the publication would be written into another one, whose next
    version replaces it.
    """
    for folder in Path(os.path.realpath(out.parent), out.name).parents:
        if match := _STORE.fullmatch(folder.name):
            other = folder.with_name(match[1])
            raise DatasetError(
                f"lies in the publication {other}", where=out, fix="name a folder outside of it"
            )


def _refuse_overlap(out: Path, root: str) -> None:
    """Raise DatasetError where the publication would be written into a writer, or a writer lies in
    its store.
    """
    if "://" in root:
        return
    writer = Path(os.path.realpath(split_view(root)[0]))
    place = Path(os.path.realpath(out.parent), out.name)
    store = place.with_name(f".{out.name}.versions")
    if writer in (place, Path(os.path.realpath(out))):
        raise DatasetError(
            "is a writer, too", where=out, fix="name the folders of the writers alone"
        )
    if writer in place.parents:
        raise DatasetError(
            f"lies in the writer {root}", where=out, fix="name a folder outside of the writers"
        )
    if place in writer.parents or store in writer.parents:
        raise DatasetError(
            f"the writer {root} lies in it", where=out, fix="name a folder outside of the writers"
        )


def _check_finished(writer: Catalog) -> None:
    """Warn of absent ids and of files that no episode names; a recording of `EpisodeWriter` has
    some while it goes on.

    Raises:
        DatasetError: files are missing, or contradict the table: another recorder was killed, for
            example, and its next episodes may be those again.
    """
    files = FileCheck(writer)
    if files.is_recorded_here:
        return
    if gaps := writer.missing_files():
        raise DatasetError(gaps[0].line, where=writer.root, fix=_COPY.format(root=writer.root))
    contradiction, irregular = files.unfinished()
    if contradiction:
        raise DatasetError(contradiction, where=writer.root, fix=_COPY.format(root=writer.root))
    if irregular:
        warnings.warn(
            f"{writer.root}: {irregular}; the listed episodes are published", stacklevel=3
        )


def _in_use(out: Path, store: Path) -> list[Path]:
    """Links of other names to the versions of `out`, as after `mv`, and versions that were
    published.
    """
    links = [
        path
        for path in out.parent.glob("*")
        if path.is_symlink() and store.name in Path(os.readlink(path)).parts
    ]
    link = store / LINK
    unpublished = Path(os.readlink(link)).name if link.is_symlink() else ""
    return links + [
        path
        for path in store.glob("*")
        if _VERSION.fullmatch(path.name) and path.name != unpublished
    ]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait for other publications."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _digest(writer: Catalog, last: int | None = None) -> str:
    """Digest of the episodes up to an id: "ID", all lengths, and the numbers of the first and of
    the last episode.
    """
    lengths = writer.episodes.digest(last)
    numbers = hashlib.sha256()
    count = int(np.searchsorted(writer.episodes.ids, int(lengths.partition(" ")[0]), side="right"))
    keys = numeric_keys(writer)
    rows = Rows(writer, keys, cache_bytes=0)
    first_and_last = sorted({0, count - 1}) if count else []
    for row in first_and_last:
        length = int(writer.episodes.lengths[row])
        if not length:
            continue
        for key in keys:
            numbers.update(np.ascontiguousarray(rows.span(row, key, 0, length)).data)
    return f"{lengths} {numbers.hexdigest()[:32]}"


def _first_new(writer: Catalog, published: str) -> int:
    """First id of a writer that is not published. Raises DatasetError where published episodes
    changed.
    """
    last = int(published.partition(" ")[0] or -1)
    if published and _digest(writer, last) != published:
        problem = (
            f"its episodes up to {last} are published, and were removed, renumbered, changed "
            "or recorded anew"
        )
        raise DatasetError(
            problem, where=writer.root, fix="restore them, or record into a folder of another name"
        )
    return last + 1


def _plan(
    old: Catalog | None, writers: list[Catalog], pieces: list[Piece], names: list[str]
) -> Plan:
    catalogs = [old, *writers] if old else writers
    sources = edit_features(catalogs, {}, (), {})
    base = Base()
    if old:
        tables = [old.episodes.data, *(videos.files for videos in old.episodes.videos.values())]
        last = max(int(DatasetFiles.numbers(table).max()) for table in tables)
        base = Base(old.num_episodes, old.num_frames, last + 1, old.tasks)
    try:
        features = common_features(sources)
        fps = common_rate(sources)
        robot = common_robot(sources, "")
    except DatasetError as error:
        fix = (
            "publish into another OUT, or a copy of a writer in a folder of its name, made by "
            "`understudy edit`: "
        )
        raise error.replaced(fix=fix + error.fix) from error
    return Plan(
        sources=sources,
        pieces=tuple(pieces),
        features=features,
        fps=fps,
        robot_type=robot,
        metadata=piece_metadata(sources, pieces, {}) | {"writer": names},
        base=base,
    )


def _add_version(
    plan: Plan,
    old: Catalog | None,
    published: dict[str, str],
    store: Path,
    out: Path,
    workers: Workers,
) -> None:
    """Write the new episodes and the version with them, and publish it."""
    old_version = os.path.basename(os.readlink(out)) if old else "000000"
    version = store / f"{int(old_version) + 1:06d}"
    draft = store / DRAFT
    files = store / "files"
    link = store / LINK
    for folder in _removable(store, old_version):
        shutil.rmtree(folder)
    link.unlink(missing_ok=True)  # after the version that it excuses
    try:
        write_set(plan, draft, workers, version.name)
        numbers = {piece.source for piece in plan.pieces}
        reopened = {number: Catalog.open(plan.sources[number].root) for number in numbers}
        for piece in plan.pieces:  # a recorder that joins its files uses their names again
            source = plan.sources[piece.source]
            writer = reopened[piece.source]
            if writer.data_path(piece.row) != source.data_path(piece.row):
                raise DatasetError(
                    "its files were joined meanwhile", where=source.root, fix="publish again"
                )
        os.symlink(f"{store.name}/{version.name}", link)
        (version / "meta").mkdir(parents=True)
        if old:
            shutil.copytree(store / old_version, version, symlinks=True, dirs_exist_ok=True)
        else:
            (files / "views").mkdir(exist_ok=True)
            os.symlink("../../files/views", version / plan.sources[0].views.FOLDER)
        for path in list(draft.rglob("chunk-*/file-*")):
            place = DatasetFiles.renumbered(path.relative_to(draft), plan.base.files)
            target = files / place
            listed = version / place
            target.parent.mkdir(parents=True, exist_ok=True)
            sync(path)
            os.replace(path, target)
            sync(target.parent)
            listed.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(os.path.relpath(target, listed.parent), listed)
        _write_meta(plan, old, published, draft, version)
        for top, _, names in os.walk(version):
            for path in [Path(top, name) for name in (*names, "")]:
                if not path.is_symlink():  # links lie in their folder, and there are many
                    sync(path)
        os.replace(link, out)
        sync(out.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # its files are in the version, or unpublished


def _removable(store: Path, old_version: str) -> list[Path]:
    """Remains of a kill, and versions of earlier times than `KEPT`; nothing that a publication did
    not make.
    """
    versions = sorted(
        path for path in store.iterdir() if _VERSION.fullmatch(path.name) and _is_folder(path)
    )
    old = [path for path in versions if path.name <= old_version][: 1 - KEPT]
    unpublished = [path for path in versions if path.name > old_version]
    return [*old, *unpublished, *(path for path in [store / DRAFT] if _is_folder(path))]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write_meta(
    plan: Plan, old: Catalog | None, published: dict[str, str], draft: Path, version: Path
) -> None:
    """Write the meta files that each version has for itself."""
    shutil.copyfile(draft / "meta/tasks.parquet", version / "meta/tasks.parquet")
    info, stats = (
        json.loads((draft / f"meta/{name}.json").read_bytes()) for name in ("info", "stats")
    )
    if old:
        info = {**old.info, "total_tasks": info["total_tasks"]}
        info |= {
            "total_episodes": plan.base.episodes + len(plan.pieces),
            "total_frames": plan.base.frames + plan.frames,
        }
        info["splits"] = {"train": f"0:{info['total_episodes']}"}
        features = {**plan.features, **DEFAULTS}
        stats = DatasetFiles.join_statistics(features, old.stats, stats)
    files = DatasetFiles(version)
    files.write_json("meta/info.json", info)
    files.write_json("meta/stats.json", stats)
    files.write_json(LEDGER, published)
