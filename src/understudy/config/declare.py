"""Metadata of settings: bounds of values, command-line markers. Needs the extra `train`."""

from understudy.optional_packages import optional_imports

with optional_imports():
    from annotated_types import Ge, Gt, Interval, Le
    from tyro.conf import Positional, Suppress

__all__ = ["Ge", "Gt", "Interval", "Le", "Positional", "Suppress"]
