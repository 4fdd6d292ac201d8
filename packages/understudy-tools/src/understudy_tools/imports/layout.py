"""Features of the dataset, from the first sample of each stream of the first recording."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from understudy_tools.imports.recording import Recording, RecordingError
from understudy_tools.imports.settings import ImportConfig, ImportMapping, Part
from understudy_tools.imports.values import is_image, joint_names, to_image, to_numbers, value_names

TIME = "source.time_ns"
AGE = "source.age_ns"


@dataclass(frozen=True)
class Layout:
    """Features, and the kind of each part.

    Attributes:
        mapping: the mapping, with the joints of messages that it does not name.
        fps: frames per second.
        features: as `EpisodeWriter` takes them.
        kinds: stream -> type.
        samples: part -> its first sample, an image or numbers.
        images: parts that are images.
        scaled: those whose arrays are of 0 to 1, and are multiplied by 255.
        linear: parts that are interpolated.
        names: part -> names of its values, None where they are unknown.
    """

    mapping: ImportMapping
    fps: int
    features: dict[str, dict[str, Any]]
    kinds: dict[str, str]
    samples: dict[str, np.ndarray]
    images: frozenset[str]
    scaled: frozenset[str]
    linear: frozenset[str]
    names: dict[str, list[str] | None]


def _stored_dtype(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return "float32"
    return "int64" if dtype == np.uint64 else str(dtype)


def read_layout(recording: Recording, mapping: ImportMapping, config: ImportConfig) -> Layout:
    """Return the layout of an opened recording.

    Raises:
        RecordingError: a stream is missing, its first sample is not as its feature needs it, or no
            rate is stated.
    """
    firsts = recording.firsts(mapping.streams)
    rate = config.fps or mapping.fps or recording.rate or 0
    if not rate or rate != int(rate):
        raise RecordingError(
            "rate",
            f"states {rate or 'no'} frames per second",
            fix="--fps N; --propose prints a bag's rates",
        )
    samples = dict[str, np.ndarray]()
    names = dict[str, list[str] | None]()
    images = set[str]()
    scaled = set[str]()
    resolved: dict[str, list[Part]] = {key: [] for key in mapping.features}
    features: dict[str, dict[str, Any]] = {}
    for key, parts in mapping.features.items():
        for name, part in zip(mapping.names(key), parts):
            try:
                if is_image(name, firsts[part.stream]):
                    if name != key:
                        raise RecordingError("image", f"is an image, and {key} has other parts")
                    images.add(name)
                    if _is_unit(recording, part.stream, firsts[part.stream]):
                        scaled.add(name)
                    samples[name] = to_image(firsts[part.stream], part.color, name in scaled)
                    names[name] = None
                else:
                    part = replace(part, joints=joint_names(part, firsts[part.stream]))
                    samples[name] = to_numbers(part, firsts[part.stream])
                    names[name] = value_names(part, len(samples[name]))
            except RecordingError as error:
                raise error.replaced(stream=part.stream) from error
            resolved[key].append(part)
        if key in images:
            features[key] = {"dtype": config.storage, "shape": samples[key].shape}
            continue
        values = np.concatenate([samples[name] for name in mapping.names(key)])
        dtype = _stored_dtype(values.dtype)
        features[key] = {"dtype": dtype, "shape": values.shape, "names": None}
        if any(names[name] for name in mapping.names(key)):
            labels: list[str] = []
            for name in mapping.names(key):
                labels += names[name] or [f"{name}[{i}]" for i in range(len(samples[name]))]
            features[key]["names"] = labels
            if len(labels) != len(values) or len(set(labels)) < len(labels):
                fix = "give a different name for each with `names`"
                raise RecordingError(
                    "names", f"{len(values)} values of {key} have the names {labels}", fix=fix
                )
    mapping = replace(mapping, features={key: tuple(parts) for key, parts in resolved.items()})
    continuous = {name for name in samples.keys() - images if samples[name].dtype.kind == "f"}
    linear = {name for name, part in mapping.parts.items() if part.resample == "linear"}
    for name in linear - continuous:
        problem = f"{name} has no values between two samples"
        fix = "leave out `resample`"
        raise RecordingError("value", problem, mapping.parts[name].stream, fix=fix)
    linear |= {
        name
        for name in continuous
        if mapping.parts[name].joints and not mapping.parts[name].resample
    }
    features[TIME] = {"dtype": "int64", "shape": (1,)}
    features[AGE] = {"dtype": "int64", "shape": (len(mapping.parts),), "names": list(mapping.parts)}
    kinds = {stream: recording.kinds[stream] for stream in mapping.streams}
    return Layout(
        mapping,
        int(rate),
        features,
        kinds,
        samples,
        frozenset(images),
        frozenset(scaled),
        frozenset(linear),
        names,
    )


def _is_unit(recording: Recording, stream: str, first: Any) -> bool:
    """Return whether images are of bools or of 3 channels of floats, and all values of the
    recording are in [0, 1].
    """
    kind = getattr(getattr(first, "dtype", None), "kind", "")
    if kind != "b" and (kind != "f" or first.shape[2:] != (3,)):
        return False
    images = (load() for _, _, load in recording.samples([stream]))
    return all(((image >= 0) & (image <= 1)).all() for image in images)
