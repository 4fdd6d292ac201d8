"""Write plans to a folder that appears in one step, complete."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from understudy.atomic import BeingWritten, create_folder, is_taken
from understudy.data.format.catalog import Catalog
from understudy.edit.plan import Plan
from understudy.edit.provenance import write_provenance
from understudy.edit.write_set import Written, write_set
from understudy.errors import DatasetError


def check_output(out: Path, catalogs: Sequence[Catalog]) -> None:
    """Raise DatasetError where the output is taken, or is a source or a folder inside one."""
    for catalog in catalogs:
        if catalog.files.is_local and out.resolve().is_relative_to(Path(catalog.root).resolve()):
            raise DatasetError("is a source, or a folder inside it", where=out, fix="a set is never edited in place")
    if is_taken(out):
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten")


def check_files(plan: Plan) -> None:
    """Raise DatasetError where listings show that a data or video file of a piece is missing."""
    for number, source in enumerate(plan.sources):
        rows = {piece.row for piece in plan.pieces if piece.source == number}
        for gap in source.missing_files(plan.cameras) or []:
            if lost := sorted(rows.intersection(gap.rows.tolist())):
                ids = source.episodes.ids[lost].tolist()
                fix = "restore the files, or leave their episodes out: --exclude-episodes " + " ".join(
                    map(str, ids[:99])
                )
                raise DatasetError(gap.line, where=source.root, fix=fix)


def write_outputs(
    plans: Mapping[str, Plan],
    out: Path,
    command: Sequence[str],
    num_workers: int,
    count: Callable[[int], None] = lambda frames: None,
) -> dict[str, Written]:
    """Write datasets into the new folder `out`: one under the name "", or several in folders of it.

    All is written to a hidden folder beside `out`, flushed and renamed. So a kill leaves either nothing at `out` or all
    of it.

    Args:
        plans: datasets by name.
        out: the folder.
        command: words of the command line, for meta/edit.json.
        num_workers: threads.
        count: called with numbers of frames as they are done, the sum of `Plan.work`.

    Raises:
        DatasetError: `out` exists, another process writes it, or a source cannot be read. Nothing is left behind.
    """
    for plan in plans.values():
        check_output(out, plan.sources)
        check_files(plan)
    done: dict[str, Written] = {}
    try:
        with create_folder(out) as draft:
            for name, plan in plans.items():
                root = draft / name if name else draft
                root.mkdir(exist_ok=True)
                done[name] = write_set(plan, root, num_workers, count)
                write_provenance(root, command, plan)
    except BeingWritten as error:
        fix = "wait for its end, or name another folder"
        raise DatasetError("another process is writing it", where=out, fix=fix) from error
    except FileExistsError as error:
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten") from error
    return done
