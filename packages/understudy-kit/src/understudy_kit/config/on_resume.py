"""Consequence of changing a setting when a run is resumed, declared next to the setting.

A setting without a marker takes the marker of the group around it. `train/resume_check.py` reads
the markers and prints each consequence before training starts.
"""

from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class OnResume:
    """The setting may change on resume. An empty `consequence` is computed by
    `train/resume_check.py`.
    """

    consequence: str = ""


@dataclass(frozen=True)
class Fixed:
    """The setting may not change on resume: the run would be a different one, for this reason."""

    reason: str


NO_EFFECT = OnResume("does not affect training")
FROM_HERE = OnResume("applies from here on; earlier steps used the old value")
ROUNDING = OnResume(
    "same samples, noise and times; sums round differently, so losses agree up to rounding"
)
SAMPLES = OnResume("the same samples; they are augmented differently from here on")
SAME_DATA = OnResume("the fingerprint shows that the dataset is the same")
SAME_FRAMES = OnResume("the fingerprint shows that the selected frames are the same")
SAME_WEIGHTS = OnResume("the fingerprint shows that the frame weights are the same")
SKIPPED = OnResume("the skipped episodes were chosen when the run started")
COMPUTED = OnResume()
DATA = Fixed("every position would hold a different sample")
NORMALIZATION = Fixed("the normalization was fixed when the run started")
NORM_HEAD = Fixed(
    "it decides which sources share a normalization, which was fixed when the run started"
)


def marker(config: Any, path: str) -> OnResume | Fixed | None:
    """Return the marker of the setting at a dotted path, or of the nearest group around it.

    Args:
        config: the settings. They decide the class of each group, which the type alone may leave
            open.
        path: as in `schema.differences`; a list item is its number, the rest of a mapping's path is
            its key.
    """
    nearest: OnResume | Fixed | None = None
    value = config
    names = path.split(".")
    for depth, name in enumerate(names):
        if is_dataclass(value) and hasattr(value, name):
            if {name, ".".join(names[depth:])} & set(
                getattr(value, "RUN_ONLY", ())
            ):  # a policy's setting that its weights do not depend on
                nearest = FROM_HERE
            hint = get_type_hints(type(value), include_extras=True)[name]
            metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
            nearest = next(
                (entry for entry in metadata if isinstance(entry, OnResume | Fixed)), nearest
            )
            value = getattr(value, name)
        elif isinstance(value, tuple) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            break
    return nearest
