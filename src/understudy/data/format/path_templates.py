"""Path templates of info.json: which ones are accepted, and that a filled one stays under the dataset's folder.

info.json may come from a stranger, so a template is no general format string: it holds plain names and `{field}` or
`{field:03d}`, nothing else.
"""

import re
from string import Formatter

from understudy.errors import DatasetError

_WIDTH = re.compile(r"(0?[1-9][0-9]?)?d?")  # 99 digits at most: a wider number would be memory, and no file's name
_FIX = "repair info.json, or give the template when the dataset is opened"


def check_template(template: object, fields: set[str]) -> str:
    """The template itself. Raises ValueError, with the reason, for one that cannot be used."""
    if not isinstance(template, str):
        raise ValueError("is missing")
    for _, name, spec, conversion in Formatter().parse(template):  # ValueError for a brace that is not closed
        if name is None:
            continue
        if name not in fields:
            raise ValueError(f"{{{name}}} is none of {', '.join(sorted(fields))}")
        if conversion is not None:
            raise ValueError(f"{{{name}!{conversion}}} is converted")
        if spec and (name == "video_key" or not _WIDTH.fullmatch(spec)):
            raise ValueError(f"{{{name}:{spec}}} is formatted otherwise than as 03d")
    if not is_inside(template.format(**{key: "x" if key == "video_key" else 1 for key in fields})):
        raise ValueError("leaves the dataset's folder")
    return template


def usable_template(template: object, fields: set[str], default: str, oddities: list[str], name: str) -> str:
    """The dataset's own template if it can be used, else the format's usual one."""
    try:
        return check_template(template, fields)
    except ValueError as error:
        oddities.append(f"info.json: {name} {str(template)[:200]!r} cannot be used ({error}); using {default!r}")
        return default


def is_inside(path: str) -> bool:
    """Whether a relative path stays under its root and can be the name of a file."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def filled(template: str, **fields: int | str) -> str:
    """The path of one file. Raises DatasetError where it leaves the dataset's folder."""
    path = template.format(**fields)
    if not is_inside(path):
        what = f"the path template {template!r} names {path[:200]!r}, which is outside the dataset"
        raise DatasetError(what, fix=_FIX)
    return path
