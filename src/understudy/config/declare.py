"""What settings are declared with: bounds of values, and how the command line takes them. Needs the extra `train`."""

from understudy.extras import optional_imports

with optional_imports():
    from annotated_types import Ge, Gt, Interval, Le
    from tyro.conf import Positional, Suppress

__all__ = ["Ge", "Gt", "Interval", "Le", "Positional", "Suppress"]
