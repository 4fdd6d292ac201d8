"""Path templates of info.json, checked so that every path stays under the dataset's folder.

info.json is untrusted input. A template is not a general format string: it may hold plain names, `{field}` and
`{field:03d}` only.
"""

import re
from string import Formatter

from understudy.errors import DatasetError

_WIDTH = re.compile(r"(0?[1-9][0-9]?)?d?")  # at most 99 digits: wider would cost memory and name no file
_FIX = "repair info.json, or give the template when the dataset is opened"


def check_template(template: object, fields: set[str]) -> str:
    """Return a usable template. Raises ValueError with the reason for any other."""
    if not isinstance(template, str):
        raise ValueError("is missing")
    for _, name, spec, conversion in Formatter().parse(template):  # ValueError for an unclosed brace
        if name is None:
            continue
        if name not in fields:
            raise ValueError(f"{{{name}}} is not one of {', '.join(sorted(fields))}")
        if conversion is not None:
            raise ValueError(f"{{{name}!{conversion}}} is converted")
        if spec and (name == "video_key" or not _WIDTH.fullmatch(spec)):
            raise ValueError(f"{{{name}:{spec}}} has another format than 03d")
    if not is_inside(template.format(**{key: "x" if key == "video_key" else 1 for key in fields})):
        raise ValueError("leaves the dataset's folder")
    return template


def template_or_default(template: object, fields: set[str], default: str, oddities: list[str], name: str) -> str:
    """Return the dataset's own template if usable, else the default of the format."""
    try:
        return check_template(template, fields)
    except ValueError as error:
        oddities.append(f"info.json: {name} {str(template)[:200]!r} cannot be used ({error}); using {default!r}")
        return default


def is_inside(path: str) -> bool:
    """Check that a relative path stays under its root and is a valid file name."""
    return not path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def fill_template(template: str, **fields: int | str) -> str:
    """Return the path of one file. Raises DatasetError if it leaves the dataset's folder."""
    path = template.format(**fields)
    if not is_inside(path):
        what = f"the path template {template!r} names {path[:200]!r}, which is outside the dataset"
        raise DatasetError(what, fix=_FIX)
    return path
