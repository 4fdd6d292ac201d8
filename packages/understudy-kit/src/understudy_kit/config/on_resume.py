"""Consequence of changing a setting when a run is resumed, declared next to the setting.

A setting without a marker takes the marker of the group around it. `train/resume_check.py` reads
the markers and prints each consequence before training starts.
"""

from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Fixed:
    """The setting may not change on resume: the run would be a different one, for this reason."""

    DATA: ClassVar["Fixed"]
    NORMALIZATION: ClassVar["Fixed"]
    NORM_HEAD: ClassVar["Fixed"]

    reason: str


Fixed.DATA = Fixed("every position would hold a different sample")
Fixed.NORMALIZATION = Fixed("the normalization was fixed when the run started")
Fixed.NORM_HEAD = Fixed(
    "it decides which sources share a normalization, which was fixed when the run started"
)


@dataclass(frozen=True)
class OnResume:
    """The setting may change on resume. An empty `consequence` is computed by
    `train/resume_check.py`.
    """

    COMPUTED: ClassVar["OnResume"]
    FROM_HERE: ClassVar["OnResume"]
    NO_EFFECT: ClassVar["OnResume"]
    ROUNDING: ClassVar["OnResume"]
    SAME_DATA: ClassVar["OnResume"]
    SAME_FRAMES: ClassVar["OnResume"]
    SAME_SAMPLES: ClassVar["OnResume"]
    SAME_WEIGHTS: ClassVar["OnResume"]
    SKIPPED: ClassVar["OnResume"]

    consequence: str = ""

    @staticmethod
    def find_marker(config: Any, path: str) -> "OnResume | Fixed | None":
        """Return the marker of the setting at a dotted path, or of the nearest group around it.

        Args:
            config: the settings. They decide the class of each group, which the type alone may
                leave open.
            path: as in `schema.differences`; a list item is its number, the rest of a mapping's
                path is its key.
        """
        nearest: OnResume | Fixed | None = None
        value = config
        names = path.split(".")
        for depth, name in enumerate(names):
            if is_dataclass(value) and hasattr(value, name):
                # a policy's setting that its weights do not depend on
                if {name, ".".join(names[depth:])} & set(getattr(value, "RUN_ONLY", ())):
                    nearest = OnResume.FROM_HERE
                hint = get_type_hints(type(value), include_extras=True)[name]
                metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
                markers = [entry for entry in metadata if isinstance(entry, OnResume | Fixed)]
                nearest = next(iter(markers), nearest)
                value = getattr(value, name)
            elif isinstance(value, tuple) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            else:
                break
        return nearest


OnResume.COMPUTED = OnResume()
OnResume.FROM_HERE = OnResume("applies from here on; earlier steps used the old value")
OnResume.NO_EFFECT = OnResume("does not affect training")
OnResume.ROUNDING = OnResume(
    "same samples, noise and times; sums round differently, so losses agree up to rounding"
)
OnResume.SAME_DATA = OnResume("the fingerprint shows that the dataset is the same")
OnResume.SAME_FRAMES = OnResume("the fingerprint shows that the selected frames are the same")
OnResume.SAME_SAMPLES = OnResume("the same samples; they are augmented differently from here on")
OnResume.SAME_WEIGHTS = OnResume("the fingerprint shows that the frame weights are the same")
OnResume.SKIPPED = OnResume("the skipped episodes were chosen when the run started")
