"""Commands and steps that mend findings. `SRC OUT` is replaced by the addresses of the dataset and of a new folder."""

from collections.abc import Iterable

EDIT = "understudy edit SRC OUT"
REWRITE = f"{EDIT} (writes index columns, timestamps, totals and statistics anew)"
RECOMPUTE = f"{EDIT} (computes statistics anew), or train with the default of data.stats, which ignores recorded ones"
LOOK = "look at the episode; if it is wrong, leave it out with --data.exclude-episodes, or understudy edit"
_MOST = 200


def drop(episodes: Iterable[int]) -> str:
    """Return the command that writes the dataset without these episodes."""
    ids = list(episodes)
    if len(ids) > _MOST:
        return f"{EDIT} --exclude-bad FILE, with the output of `understudy check SRC --json`"
    return f"{EDIT} --exclude-episodes {' '.join(map(str, ids))}"


def restore(path: str) -> str:
    """Return the step for a broken or missing file."""
    return f"download or copy {path} again, or leave its episodes out: --data.on-bad-episode skip"


def correct(entry: str, file: str = "meta/info.json") -> str:
    """Return the step for a wrong value in a metadata file."""
    return f"correct {entry} in {file}"


def fill(fix: str, root: str, leaves_none: bool = False) -> str:
    """Put the addresses of the dataset and of a new folder into a fix.

    Args:
        fix: the fix of a finding.
        root: address of the dataset.
        leaves_none: whether the finding is about all episodes, so that none may be left out.
    """
    if leaves_none and any(flag in fix for flag in ("--exclude-", "--data.on-bad-episode", "--data.exclude-episodes")):
        fix = (
            fix.split(", or leave")[0]
            if ", or leave" in fix
            else "all episodes have it: repair the files, or record anew"
        )
    name = root.rstrip("/").rpartition("/")[2]
    return fix.replace("SRC OUT", f"{root} {name}-mended").replace("check SRC", f"check {root}")
