"""Causes of failures of Arrow, each with its own remedy: a download helps against damaged bytes
alone.
"""

import pyarrow as pa

from understudy_base import DatasetError, summarize
from understudy_data.storage.byte_source import ByteSource

RESTORE = "restore the file or download the dataset again"
_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_CUT = (
    "its writer ended before it was finished, or a copy was: copy or download it again if its "
    "source is complete; else its rows are lost: leave its episodes out"
)


def explain_parquet_error(
    error: Exception, source: ByteSource | None, where: object
) -> DatasetError:
    """Return the error that names the cause of a failure to read a parquet file.

    Args:
        error: the error of Arrow or of the system.
        source: the open file; None where it cannot be opened again.
        where: name of the file.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = summarize(error)
    if kinds & {"MemoryError", "ArrowMemoryError"}:
        fix = "free memory, use fewer processes, or write the file anew with smaller row groups"
        return DatasetError(f"not enough memory to read it: {text}", where=where, fix=fix)
    if "ArrowNotImplementedError" in kinds:
        fix = (
            "install the pyarrow of its writer, or write the file anew there with another type "
            "or compression"
        )
        return DatasetError(
            f"pyarrow {pa.__version__} cannot read it: {text}", where=where, fix=fix
        )
    if isinstance(error, OSError) and error.errno is not None:
        return DatasetError(
            f"cannot be read: {text}",
            where=where,
            fix="check the disk, the mount and its permissions",
        )
    problem = _shape_of(source) if source is not None else ""
    if problem:
        fix = _CUT if "cut" in problem else RESTORE
        fix = "decrypt it first: encrypted files are not read" if "encrypted" in problem else fix
        return DatasetError(problem, where=where, fix=fix)
    return DatasetError(f"not a readable parquet file: {text}", where=where, fix=RESTORE)


def _shape_of(source: ByteSource) -> str:
    """Return the fault that the ends of a file show; "" for none."""
    size = source.size
    if size == 0:
        return "the file is empty: it is cut to 0 bytes"
    begin = source.read(0, min(4, size))
    end = source.read(max(0, size - 4), min(4, size))
    if _ENCRYPTED in (begin, end):
        return "the file is encrypted"
    if begin != _MAGIC and not _MAGIC.startswith(begin):
        return "not a parquet file: it does not begin with PAR1"
    if end != _MAGIC or size < 12:
        return f"the file is cut: its {size:,} bytes have no footer"
    return ""


def check_values(table: pa.Table, where: object) -> None:
    """Check the offsets and texts of a table, which no later code does.

    Raises:
        DatasetError: names the column, and the cause.
    """
    try:
        table.validate(full=True)
        return
    except pa.ArrowInvalid as error:
        whole = error
    for name in table.column_names:
        try:
            table.column(name).validate(full=True)
        except pa.ArrowInvalid as error:
            if "utf8" in str(error).lower():
                fix = (
                    "write this column anew as UTF-8; a download of the same file has the same "
                    "bytes"
                )
                raise DatasetError(
                    f"column {name!r} has text that is not UTF-8", where=where, fix=fix
                ) from error
            problem = f"column {name!r} is damaged: {summarize(error)}"
            raise DatasetError(problem, where=where, fix=RESTORE) from error
    raise whole
