"""Rules of the data files and the places of episodes in them."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from understudy.check.findings import Finding, Place, Severity, list_ids
from understudy.check.remedies import EDIT, REWRITE, correct, drop, restore
from understudy.check.row_facts import RowFacts
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import FileTable
from understudy.errors import DatasetError, SourceError
from understudy.plural import plural


def check_files(catalog: Catalog) -> Iterator[Finding]:
    """Yield findings about missing and orphan files, from folder listings."""
    try:
        gaps = catalog.missing_files()
    except SourceError:
        raise
    except DatasetError as error:
        yield Finding("files.missing", "error", error.what, Place(file=str(error.where)), fix=error.fix)
        return
    ids = catalog.episodes.ids
    for gap in gaps or []:
        yield Finding(
            "files.missing",
            "error",
            gap.line,
            Place(episodes=tuple(ids[gap.rows].tolist()), camera="" if gap.kind == "data" else gap.kind),
            measured=len(gap.rows),
            expected=0,
            fix=restore("the files"),
        )
    if gaps is not None:
        yield from _orphans(catalog)


def _orphans(catalog: Catalog) -> Iterator[Finding]:
    """Files with the suffix of data or videos in the folders of the tables that no episode names."""
    table = catalog.episodes
    kinds: list[tuple[str, FileTable, np.ndarray]] = [("", table.data, table.data_file)]
    kinds += [(key, videos.files, videos.file) for key, videos in table.videos.items()]
    named: dict[str, set[str]] = {}
    camera_of: dict[str, str] = {}
    for camera, places, _ in kinds:
        for file in range(len(places)):
            folder, _, name = places.find(catalog.files, file).rpartition("/")
            named.setdefault(folder, set()).add(name)
            camera_of.setdefault(folder, camera)
    for folder in list(named):  # other chunks beside those in use
        parent, _, last = folder.rpartition("/")
        for name, is_folder in (catalog.files.entries(parent) or []) if last.startswith("chunk-") else ():
            if is_folder and name.startswith("chunk-") and f"{parent}/{name}" not in named:
                named[f"{parent}/{name}"] = set()
                camera_of[f"{parent}/{name}"] = camera_of[folder]
    orphans: dict[str, list[str]] = {}
    for folder, names in named.items():
        suffixes = {name.rpartition(".")[2] for name in names} or {"mp4" if camera_of[folder] else "parquet"}
        for name, is_folder in catalog.files.entries(folder) or []:
            if not is_folder and name not in names and not name.startswith(".") and name.rpartition(".")[2] in suffixes:
                orphans.setdefault(camera_of[folder], []).append(f"{folder}/{name}")
    for camera, paths in orphans.items():
        yield Finding(
            "files.orphan",
            "warning",
            f"{plural(len(paths), 'file is', 'files are')} named by no episode, first {paths[0]}",
            Place(camera=camera, file=paths[0]),
            measured=len(paths),
            expected=0,
            fix=f"remove the file, or restore meta/; {EDIT} copies named files only",
        )


def check_rows(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about rows that disagree with the episode table."""
    yield from _unreadable(catalog, facts)
    table = catalog.episodes
    ids, lengths = table.ids, table.lengths
    has_rows = facts.is_known(facts.found) & (lengths > 0)
    short = np.flatnonzero(has_rows & (facts.found != lengths) & ~facts.is_split)
    for row in short[:20].tolist():
        yield Finding(
            "rows.count",
            "error",
            f"meta/ gives {plural(int(lengths[row]), 'frame')}, the file has "
            f"{plural(int(facts.found[row]), 'row')} of the episode",
            Place(episodes=(int(ids[row]),), file=catalog.data_path(row)),
            measured=int(facts.found[row]),
            expected=int(lengths[row]),
            fix=drop([int(ids[row])]),
            score=float(abs(facts.found[row] - lengths[row])),
        )
    if len(short) > 20:
        rest = tuple(ids[short[20:]].tolist())
        message = f"the same for {plural(len(rest), 'more episode')}"
        yield Finding("rows.count", "error", message, Place(episodes=rest), fix=drop(rest))
    yield from _about(
        catalog, np.flatnonzero(facts.is_split), "rows.split", "error", "the rows are not contiguous in the file"
    )
    if facts.orphans:
        rows = sum(facts.orphans.values())
        yield Finding(
            "rows.orphan",
            "warning",
            f"{plural(rows, 'row')} ({rows / max(1, facts.rows):.1%}) of {plural(len(facts.orphans), 'episode')} that "
            f"meta/ does not list there: {list_ids(sorted(facts.orphans))}",
            Place(file=facts.orphan_file),
            measured=rows,
            expected=0,
            fix=f"{EDIT} (copies listed rows only), or restore the episodes in meta/episodes",
        )
    yield from _stored_ids(catalog, facts)
    yield from _frame_index(catalog, facts)
    yield from _index(catalog, facts)


def _about(catalog: Catalog, rows: np.ndarray, rule: str, severity: Severity, message: str) -> Iterator[Finding]:
    if len(rows):
        episodes = tuple(catalog.episodes.ids[rows].tolist())
        place = Place(episodes=episodes, file=catalog.data_path(int(rows[0])))
        yield Finding(rule, severity, message, place, measured=len(rows), expected=0, fix=drop(episodes))


def _unreadable(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    table = catalog.episodes
    for file, column, error in facts.unreadable:
        rows = np.flatnonzero((table.data_file == file) & (table.lengths > 0))
        path = catalog.data_path(int(rows[0]))
        place = Place(episodes=tuple(table.ids[rows].tolist()), column=column, file=path)
        yield Finding("files.unreadable", "error", error.what, place, fix=error.fix or restore(path))
    for key, files in facts.lacking.items():
        rows = np.flatnonzero(np.isin(table.data_file, files) & (table.lengths > 0))
        path = catalog.data_path(int(rows[0]))
        yield Finding(
            "files.columns",
            "error",
            f"the column is declared in info.json and absent in {plural(len(files), 'file')}",
            Place(episodes=tuple(table.ids[rows].tolist()), column=key, file=path),
            measured=len(files),
            expected=0,
            fix=f"restore the files, or remove the feature {key!r} from meta/info.json",
        )
    if len(facts.schemas) > 1 and not facts.lacking:
        kinds = [dict(schema) for schema in sorted(facts.schemas, key=lambda schema: -len(facts.schemas[schema]))]
        differing = sorted(
            {key for kind in kinds[1:] for key in {*kinds[0], *kind} if kinds[0].get(key) != kind.get(key)}
        )
        numbers = Counter({schema: len(files) for schema, files in facts.schemas.items()})
        odd = facts.schemas[numbers.most_common()[-1][0]][0]
        row = int(np.flatnonzero(table.data_file == odd)[0])
        yield Finding(
            "files.columns",
            "warning" if any(key in catalog.features for key in differing) else "note",
            f"files differ in the types of {', '.join(differing[:8])}",
            Place(column=differing[0], file=catalog.data_path(row)),
            measured=len(facts.schemas),
            expected=1,
            fix=f"{EDIT} (writes one schema); this reader converts to the declared dtype",
        )
    extra = {key: kind for key, kind in facts.undeclared.items() if not key.startswith("__index_level")}
    if extra:
        yield Finding(
            "files.columns",
            "note",
            f"info.json does not declare {', '.join(f'{key} ({kind})' for key, kind in list(extra.items())[:8])}",
            measured=sorted(extra),
            fix=correct("features"),
        )


def _stored_ids(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Files of one episode whose column episode_index is another id: renumbered if the ids rise, else exchanged."""
    ids = catalog.episodes.ids
    rows = np.flatnonzero(facts.is_known(facts.stored_id))
    wrong = rows[facts.stored_id[rows] != ids[rows]]
    if not len(wrong):
        return
    rises = bool((np.diff(facts.stored_id[rows]) > 0).all())
    row = int(wrong[0])
    yield Finding(
        "rows.episode",
        "warning" if rises else "error",
        f"the file of episode {int(ids[row])} has rows of episode {int(facts.stored_id[row])}"
        + ("; the order is kept" if rises else ": the files are in another order than their rows"),
        Place(episodes=tuple(ids[wrong].tolist()), column="episode_index", file=catalog.data_path(row)),
        measured=int(facts.stored_id[row]),
        expected=int(ids[row]),
        fix=REWRITE if rises else drop(ids[wrong].tolist()),
    )


def _frame_index(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    falls = np.flatnonzero(facts.is_read & ~facts.frames_rise)
    yield from _about(catalog, falls, "rows.frame_index", "error", "frame_index does not rise: rows are out of order")
    gaps = np.flatnonzero(facts.is_read & facts.frames_rise & ~facts.frames_count)
    yield from _about(
        catalog, gaps, "rows.frame_index", "warning", "frame_index does not count 0, 1, 2, ...: rows were removed"
    )


def _index(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """`index` counts all frames. A subset of a dataset keeps the numbers of the whole, shifted by episode."""
    table = catalog.episodes
    has_index = facts.is_read & facts.is_known(facts.first_index)
    jumps = np.flatnonzero(has_index & ~facts.index_counts)
    yield from _about(catalog, jumps, "rows.index", "warning", "index does not rise by 1 within the episode")
    first = np.flatnonzero(has_index & facts.index_counts)
    if "index" not in catalog.features and not len(first):
        return
    off = first[(facts.first_index[first] != table.index_from[first])]
    position = facts.position[off] != table.index_from[off]
    if not len(off):
        return
    row = int(off[0])
    listed = catalog.version.startswith("v3")
    yield Finding(
        "rows.index",
        "error" if listed and position.any() else "warning",
        f"index of the first row is {int(facts.first_index[row])}, "
        + ("dataset_from_index" if listed else "the frames before it number")
        + f" {int(table.index_from[row])}",
        Place(episodes=tuple(table.ids[off].tolist()), column="index"),
        measured=int(facts.first_index[row]),
        expected=int(table.index_from[row]),
        fix=REWRITE,
    )
