"""Selection of the pieces to keep: episodes by id, condition or finding, and ranges of frames."""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.selection.select import KeepRanges, select
from understudy.data.selection.where import matching_rows
from understudy.edit.plan import Piece
from understudy.errors import DatasetError

_MOST, _DIGITS = 10_000_000, 12  # ids, and digits of them that are read
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def parse_ids(words: Sequence[str], name: str) -> list[int]:
    """Parse episode ids such as "0-7", "12" or "3,5,9"; `name` is their setting, for messages."""
    found: list[int] = []
    for word in (part for words_ in words for part in str(words_).split(",")):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise DatasetError(f"{name} holds {word!r}", fix="give episode ids and ranges of them, as in 0-7 12")
        first, last = int(match[1][:_DIGITS]), int((match[2] or match[1])[:_DIGITS])
        if last < first:
            raise DatasetError(f"{name} holds the range {word!r}", fix="give the lower id first")
        if last >= _MOST:
            raise DatasetError(f"{name} holds {word!r}", fix=f"give ids below {_MOST:,}")
        found += range(first, last + 1)
    return found


def select_pieces(
    catalog: Catalog,
    source: int,
    *,
    keep: Sequence[int] = (),
    drop: Sequence[int] = (),
    where: str = "",
    keep_ranges: KeepRanges | None = None,
    drop_first: int = 0,
    drop_last: int = 0,
) -> list[Piece]:
    """Select the pieces of one source. Each range of frames becomes an episode, so no window spans a cut.

    Args:
        catalog: the source.
        source: its number.
        keep: ids of the episodes to keep; empty: all.
        drop: ids of the episodes to leave out.
        where: condition on metadata (`data.selection.where`); "" for none.
        keep_ranges: frame ranges to keep (`data.selection.select`).
        drop_first: frames to leave out at the start of each episode.
        drop_last: frames to leave out at the end of each episode.

    Raises:
        DatasetError: an unknown episode, an unusable condition or file, or no frame is left.
    """
    table = catalog.episodes
    rows = np.arange(len(table)) if not len(keep) else table.rows_of(np.array(keep))
    if where:
        rows = np.intersect1d(rows, matching_rows(catalog, where))
    rows = np.setdiff1d(rows, table.rows_of(np.array(drop, np.int64)))
    chosen = select(
        catalog,
        episodes=table.ids[rows],
        drop_first=drop_first,
        drop_last=drop_last,
        keep_ranges=keep_ranges,
        keep_rule="start",
    )
    row_of = table.rows_of(chosen.segments[:, 0]).tolist()
    return [Piece(source, row, start, stop) for row, (_, start, stop) in zip(row_of, chosen.segments.tolist())]


def read_bad_episodes(path: str) -> list[int]:
    """Return the ids of the episodes that `understudy check --json` calls faulty (`bad_episodes`).

    Raises:
        DatasetError: the file is no such output.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        found = content["bad_episodes"]
        if any(type(episode) is not int or not 0 <= episode < _MOST for episode in found):
            raise ValueError("an episode id is no whole number")
        return sorted(set(found))
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", where=path, fix="give the output of check") from None
    except (ValueError, KeyError, TypeError) as error:
        what = f"is not the output of `understudy check --json`: {type(error).__name__}: {error}"
        raise DatasetError(what, where=path, fix="write it with: understudy check DATASET --json > FILE") from None


def split_pieces(
    catalogs: Sequence[Catalog], pieces: Sequence[Piece], parts: Sequence[str], seed: int
) -> dict[str, list[Piece]]:
    """Divide pieces into named parts, whole source episodes only.

    Args:
        catalogs: the sources.
        pieces: the pieces to divide.
        parts: "NAME=SHARE" with a share from 0 to 1, or "NAME=IDS" with episode ids of the only source. The shares
            divide the episodes in a random order of `seed`; together they are at most 1.
        seed: of the random order.

    Raises:
        DatasetError: a part is malformed or empty, or an episode is in two parts.
    """
    shares: dict[str, float] = {}
    ids: dict[str, list[int]] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        fix = "as in --split train=0.9 val=0.1, or --split train=0-7 val=8,9"
        if not equals or not re.fullmatch(r"\w[\w.-]*", name) or name in shares or name in ids:
            raise DatasetError(f"split holds {part!r}, which is no new NAME=SHARE or NAME=IDS", fix=fix)
        if re.fullmatch(r"0?\.\d+|1\.0*", value):
            shares[name] = float(value)
        else:
            ids[name] = parse_ids([value], "split")
    if shares and ids:
        raise DatasetError(
            "split mixes shares and ids", fix="give one kind; an id is a whole number, a share has a dot"
        )
    if sum(shares.values()) > 1 + 1e-9:
        raise DatasetError(f"the shares of split add up to {sum(shares.values()):g}", fix="give 1 at most")
    found = _by_share(pieces, shares, seed) if shares else _by_id(catalogs, pieces, ids)
    for name, own in found.items():
        if not own:
            raise DatasetError(f"the part {name!r} of split holds no episode", fix="give it more episodes")
    return found


def _by_share(pieces: Sequence[Piece], shares: dict[str, float], seed: int) -> dict[str, list[Piece]]:
    episodes = sorted({(piece.source, piece.row) for piece in pieces})
    keys = [_place(seed, source, row) for source, row in episodes]
    shuffled = [episodes[i] for i in np.argsort(keys, kind="stable")]
    found, first, total = dict[str, list[Piece]](), 0, 0.0
    for name, share in shares.items():
        total += share
        stop = round(total * len(shuffled))
        chosen, first = set(shuffled[first:stop]), stop
        found[name] = [piece for piece in pieces if (piece.source, piece.row) in chosen]
    return found


def _place(seed: int, source: int, row: int) -> float:
    """Random place of an episode, the same for any number of episodes."""
    digest = hashlib.blake2b(f"understudy edit {seed} {source} {row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def _by_id(catalogs: Sequence[Catalog], pieces: Sequence[Piece], ids: dict[str, list[int]]) -> dict[str, list[Piece]]:
    if len(catalogs) > 1:
        raise DatasetError("split gives ids, and there are several sources", fix="split by shares, or one source")
    table, part_of = catalogs[0].episodes, dict[int, str]()
    for name, own in ids.items():
        for row, episode in zip(table.rows_of(np.array(own)).tolist(), own):
            if row in part_of:
                raise DatasetError(
                    f"split gives episode {episode} to {part_of[row]!r} and {name!r}", fix="name it once"
                )
            part_of[row] = name
    found: dict[str, list[Any]] = {name: [] for name in ids}
    for piece in pieces:
        if piece.row in part_of:
            found[part_of[piece.row]].append(piece)
    return found
