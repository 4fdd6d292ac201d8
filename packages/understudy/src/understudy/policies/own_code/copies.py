"""Copies of own code beside the weights that it describes: `policy_code.py`, and its local modules
in `policy_code/`.

The modules are those that the digest covers, under their names, so that the copy has the digest of
the original. It is imported from there only if the user names it by hand, as any other code
(`types.py`).
"""

from pathlib import Path

from understudy.policies.own_code.sources import CODE, MODULES, Sources


def write_copy(sources: Sources, folder: Path) -> None:
    """Write a file as `policy_code.py` into a folder, and each of its local modules below
    `policy_code/`.

    A package without `__init__.py` gets an empty one: its folder would count by the files that are
    not copied.

    Raises:
        OSError: a file cannot be written.
    """
    (folder / CODE).write_bytes(sources.content)
    for name, module in sources.modules.items():
        place = folder / MODULES / Path(*name.split("."))
        target = place / "__init__.py" if module.is_package else place.with_name(f"{place.name}.py")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(module.content)


def is_copy(entry: Path) -> bool:
    """Return whether an entry of a folder is one that `write_copy` writes: no link, and Python
    files alone.
    """
    if entry.is_symlink() or entry.name not in (CODE, MODULES):
        return False
    if entry.name == CODE:
        return entry.is_file()
    inside = list(entry.rglob("*"))
    is_code = [not path.is_symlink() and (path.is_dir() or path.suffix == ".py") for path in inside]
    return entry.is_dir() and all(is_code)
