"""Rule of the pairing of rows with episodes: columns that name another episode than the place of
the rows.
"""

import numpy as np

from understudy_data import Catalog
from understudy_tools.check.findings import EDIT, REWRITE, Finding, Findings, Place, Severity
from understudy_tools.check.image_facts import VideoFacts
from understudy_tools.check.row_facts import RowFacts


def check_pairing(catalog: Catalog, facts: RowFacts, videos: VideoFacts | None) -> Findings:
    """Yield `rows.episode`: an error where videos or sensors lie apart from the rows and no setting
    decides.
    """
    table = catalog.episodes
    if table.own_files:
        yield from _renamed_files(catalog, facts, videos)
    rows = np.flatnonzero(facts.is_doubtful)
    if len(rows):
        row = int(rows[0])
        message = (
            f"by the column episode_index, rows of episode {int(table.ids[row])} are at "
            "another place in the "
        )
        message += "file than dataset_from_index lists, and `index` does not confirm the column"
        yield _finding(catalog, rows, message, None, int(table.ids[row]), "")


def _finding(
    catalog: Catalog, rows: np.ndarray, message: str, measured: int | None, expected: int, hint: str
) -> Finding:
    """Return the finding about table rows, with the remedy for images that lie apart from the rows,
    or for none.
    """
    is_error = catalog.has_images_by_place and not catalog.episodes.pairing
    severity: Severity = "error" if is_error else "warning"
    place = Place.from_rows(catalog, rows, "episode_index", file=catalog.data_path(int(rows[0])))
    if not is_error:
        by_place = catalog.episodes.own_files or catalog.episodes.pairing
        decides = "the place of the rows" if by_place else "the column"
        return Finding(
            "rows.episode",
            severity,
            f"{message}; {decides} is used",
            place,
            measured,
            expected,
            REWRITE,
        )
    ids = " ".join(map(str, place.episodes[:20]))
    fix = (
        f"name the right side: {EDIT} --pairing files (data files and videos were renamed or "
        "joined together) or "
    )
    fix += (
        f"--pairing columns (data files alone were){hint}; `understudy view SRC --pairing files "
        f"--episodes {ids}` "
    )
    fix += f"shows them, or leave them out: --exclude-episodes {ids}"
    return Finding("rows.episode", severity, message, place, measured, expected, fix)


def claimed_ids(catalog: Catalog, facts: RowFacts) -> np.ndarray:
    """Return the id of the episode that the columns of each file of one episode name, int64
    (N,).
    """
    table = catalog.episodes
    claims = table.ids.copy()
    if not table.own_files:
        return claims
    for row in np.flatnonzero(facts.is_known(facts.found) & (facts.found > 0)).tolist():
        stored_id = _entry_if_known(facts, facts.stored_id, row)
        first_index = _entry_if_known(facts, facts.first_index, row)
        claims[row] = table.claimed_episode(row, stored_id, first_index)
    return claims


def _entry_if_known(facts: RowFacts, values: np.ndarray, row: int) -> np.ndarray | None:
    entry = values[row : row + 1]
    return entry if facts.is_known(entry).all() else None


def _renamed_files(catalog: Catalog, facts: RowFacts, videos: VideoFacts | None) -> Findings:
    table = catalog.episodes
    claims = claimed_ids(catalog, facts)
    rows = np.flatnonzero(claims != table.ids)
    if not len(rows):
        return
    claimed = int(claims[rows[0]])
    listed = int(table.ids[rows[0]])
    owner = "several episodes" if claimed == table.MIXED else f"episode {claimed}"
    message = f"the file of episode {listed} has rows of {owner}"
    shift = np.unique((claims - table.ids)[rows])
    if len(rows) > 1 and len(shift) == 1 and table.MIXED not in claims[rows]:
        message += (
            f"; file numbers are off by {int(shift[0])} from episode {listed} to "
            f"{int(table.ids[rows[-1]])}"
        )
    hint, fact = _compare_lengths(catalog, facts, videos, rows, claims)
    yield _finding(catalog, rows, message + fact, claimed, listed, hint)


def _compare_lengths(
    catalog: Catalog,
    facts: RowFacts,
    videos: VideoFacts | None,
    rows: np.ndarray,
    claims: np.ndarray,
) -> tuple[str, str]:
    """Compare the rows of files with meta/ and videos, by the names of the files and by their
    columns.

    Returns:
        Text for the remedy that names the side which lengths favor, and the fact for the message.
    """
    table = catalog.episodes
    lengths = [table.lengths]  # by table row, -1 where unknown
    video_files = videos.files if videos is not None else {}
    for camera, opened in video_files.items():
        of_file = {video.file: video.count for video in opened}
        lengths.append(
            np.array([of_file.get(file, -1) for file in catalog.videos(camera).file.tolist()])
        )
    listed = np.searchsorted(table.ids, claims[rows])
    is_listed = table.ids[np.minimum(listed, len(table) - 1)] == claims[rows]
    by_columns = np.minimum(listed, len(table) - 1)
    fit_names = np.ones(len(rows), bool)
    fit_columns = is_listed
    for counts in lengths:
        fit_names &= (counts[rows] < 0) | (counts[rows] == facts.found[rows])
        fit_columns = fit_columns & (
            (counts[by_columns] < 0) | (counts[by_columns] == facts.found[rows])
        )
    count = len(rows)
    fact = (
        f"; lengths fit the file names in {int(fit_names.sum())} of {count}, the columns in "
        f"{int(fit_columns.sum())}"
    )
    if fit_names.all() and not fit_columns.all():
        return "; lengths favor files", fact
    if fit_columns.all() and not fit_names.all():
        return "; lengths favor columns", fact
    return "", f"{fact}: lengths do not decide"
