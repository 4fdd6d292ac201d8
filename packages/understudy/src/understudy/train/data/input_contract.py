"""The contract of a run, measured on its training frames, and the contract of a dataset
(`contract/facts.py`).

Ranges come from the statistics that normalize. The appearance of a camera comes from `IMAGES`
images that are spread evenly over the training frames of its sources: about a second per camera. A
dataset may state facts that no file of LeRobot holds (units, zeros of actions, gripper,
orientation) in meta/contract.json.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from understudy.config.samples import SampleSettings
from understudy.policies.capabilities.files import files_of
from understudy.policies.capabilities.images import fit_images, way_of_resizing
from understudy.policies.policy_folder import digests
from understudy.train.data.dimension_modes import describe_modes, dimension_modes
from understudy.train.data.run_data import RunData, dataset_fingerprint, head_members
from understudy.train.track import metrics_file
from understudy_base import ACTION, STATE, DatasetError, Progress, __version__, redact
from understudy_client import (
    FIGURES,
    CameraFacts,
    CameraPrint,
    Contract,
    RobotFacts,
    VectorFacts,
    shrink,
)
from understudy_data import (
    Catalog,
    DimensionMode,
    EpisodeDataset,
    Instructions,
    NormHeads,
    Statistics,
    Workers,
)

IMAGES = 48
"""Images of each camera and norm head whose appearance is measured."""
MOST_IMAGES = 960
LEAST_IMAGES = 8
"""Images of all cameras and heads together, and of one camera in spite of that."""
_BATCH = 4  # images in memory at once

logger = logging.getLogger(__name__)

Modes = Mapping[str, Sequence[DimensionMode]]


def make_contract(
    settings: SampleSettings,
    data: RunData,
    cache: Path | None = None,
    statistics: Mapping[str, Mapping[str, Statistics]] | None = None,
) -> dict[str, Any]:
    """Measure the contract of a run, as plain values (`Contract.to_json`).

    Args:
        settings: those of the run's samples.
        data: its data.
        cache: folder of earlier statistics; None keeps nothing.
        statistics: by norm head and key, those of the actions as recorded; None computes them.

    Raises:
        DatasetError: the statistics cannot be computed; external ones leave the ranges unknown. An
            image that cannot be read only leaves its camera's appearance unknown, with a warning.
    """
    if statistics is None:
        statistics = head_statistics(settings.data.actions_per_chunk, data, cache)
    robots = {}
    cameras = sum(len(_cameras_of(data, number)) for number in range(len(data.heads)))
    images = min(IMAGES, max(LEAST_IMAGES, MOST_IMAGES // max(1, cameras)))
    with Progress(images * cameras, "appearance of cameras", "image") as bar:
        for number, head in enumerate(data.heads):
            robots[head] = _robot(settings, data, number, statistics.get(head, {}), images, bar)
    provenance = {
        "datasets": {source.name: redact(source.training.catalog.root) for source in data.sources},
        "fingerprint": dataset_fingerprint(data),
        "versions": {"understudy": __version__, "torch": torch.__version__, "av": av.__version__},
    }
    return Contract(robots, provenance).to_json()


def named_heads(
    metadata: Mapping[str, Any], heads: Sequence[str], normalization: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the facts about the robots under the heads of the normalization, which may be that of
    another policy.
    """
    theirs = normalization.get("heads", [""])
    renamed_to = theirs if len(theirs) == len(heads) else heads
    names = dict(zip(heads, renamed_to, strict=True))
    contract = metadata["contract"]
    robots = {names[head]: robot for head, robot in contract["robots"].items()}
    renamed = {names[head]: facts for head, facts in metadata["heads"].items()}
    return {**metadata, "heads": renamed, "contract": {**contract, "robots": robots}}


def with_provenance(metadata: Mapping[str, Any] | None, run: Path, step: int) -> dict[str, Any]:
    """Return the facts about the robots of a run with the run, step and validation of a policy in
    their contract.
    """
    facts = dict(metadata or {})
    if contract := facts.get("contract"):
        provenance = {**contract["provenance"], "run": run.resolve().name, "step": step}
        if figures := _validation_figures(run, step):
            provenance["figures"] = figures
        facts["contract"] = {**contract, "provenance": provenance}
    return facts


def _validation_figures(run: Path, step: int) -> dict[str, float]:
    """Losses of the validation of a step, by name; {} if there was none."""
    record = next(
        (
            r
            for r in metrics_file.iterate(run / metrics_file.NAME)
            if (r["kind"], r["step"]) == ("val", step)
        ),
        {},
    )
    names = {"loss": "loss, mean of all samples", "macro": "loss, mean of the tasks"}
    return {
        text: record[name]
        for name, text in names.items()
        if isinstance(record.get(name), int | float)
    }


def head_statistics(
    chunk: int, data: RunData, cache: Path | None, workers: Workers | None = None
) -> dict[str, dict[str, Statistics]]:
    """Return the statistics of each head; one with external statistics has none, since its rows
    need not be read.

    `chunk` is the number of actions of a chunk.
    """
    members = head_members(data, with_delta=False)
    external = {source.head for source in data.sources if source.stats}
    computed = [member for member in members if member.head not in external]
    return NormHeads(computed, chunk, cache, workers=workers).statistics() if computed else {}


def _members(data: RunData, number: int) -> list[int]:
    return np.flatnonzero(data.head_of_source == number).tolist()


def _cameras_of(data: RunData, number: int) -> dict[str, list[int]]:
    """Sources of a head that have each camera."""
    members = _members(data, number)
    sources = {}
    for camera in data.cameras:
        numbers = [n for n in members if camera not in data.training[n].missing_cameras]
        if numbers:
            sources[camera] = numbers
    return sources


def _robot(
    settings: SampleSettings,
    data: RunData,
    number: int,
    statistics: Mapping[str, Statistics],
    images: int,
    bar: Progress,
) -> RobotFacts:
    members = _members(data, number)
    first = data.training[members[0]]
    source = settings.data.mixed()[members[0]]
    separator = settings.augment.task_separator
    stored = chain.from_iterable(data.training[n].catalog.tasks for n in members)
    split = chain.from_iterable(map(Instructions(separator).split, stored))
    tasks = list(dict.fromkeys(split))
    if settings.augment.text_dropout and "" not in tasks:
        tasks.append("")
    modes = dimension_modes(settings.data, data, settings.policy.NORMALIZE)[members[0]]
    cameras = {}
    for camera, numbers in _cameras_of(data, number).items():
        sizes = {data.training[n].catalog.features[camera].size for n in numbers}
        size = sizes.pop() if len(sizes) == 1 else None
        look = _look(camera, [data.training[n] for n in numbers], images, bar)
        recorded = settings.data.mixed()[numbers[0]].cameras.get(camera, camera)
        policy = fit_images(settings.policy, data.image_sizes)
        cameras[camera] = CameraFacts(
            recorded,
            size or (0, 0),
            look,
            color="RGB",
            layout="HWC",
            dtype="uint8",
            resize=way_of_resizing(policy),
            network_size=policy.network_size,
        )
    text = next((field for field in files_of(settings.policy) if field == "tokenizer"), "")
    state = None
    if STATE in first.keys:
        state = _vector(first, STATE, source.state, statistics.get(STATE), modes)
    facts = RobotFacts(
        fps=float(first.catalog.fps),
        chunk=settings.data.actions_per_chunk,
        robot_type=source.robot_type or first.catalog.robot_type or "",
        control_mode=source.control_mode,
        state=state,
        action=_vector(first, ACTION, source.action, statistics.get(ACTION), modes),
        cameras=cameras,
        tasks=tuple(tasks[: RobotFacts.MOST_TASKS]),
        tasks_left_out=max(0, len(tasks) - RobotFacts.MOST_TASKS),
        episodes=sum(data.training[n].num_episodes for n in members),
        prompt=getattr(settings.policy, "prompt", ""),
        tokenizer=digests(settings.policy).get(text, ""),
    )
    stated = [_stated(data.training[n].catalog) for n in members]
    # sources that differ state nothing of their head
    texts = {str(robot and robot.to_json()) for robot in stated}
    return facts.completed(stated[0]) if stated[0] is not None and len(texts) == 1 else facts


def dataset_contract(root: str | Catalog, images: int = 0) -> Contract:
    """Make the contract of a dataset from its metadata, its recorded statistics and the statements
    in its meta/.

    Args:
        root: folder or URL of the dataset.
        images: images of each camera whose appearance is measured; 0: none.

    Raises:
        DatasetError: the dataset, its statistics or its statements cannot be read.
    """
    catalog = Catalog.open(root)
    part = EpisodeDataset(catalog)
    keys = {"state": (STATE, "state"), "action": (ACTION, "actions")}
    vectors: dict[str, VectorFacts | None] = {}
    for name, candidates in keys.items():
        key = next((key for key in candidates if key in catalog.features), None)
        vectors[name] = None
        if key is not None:
            vectors[name] = VectorFacts.from_figures(
                key,
                catalog.stats.get(key, {}),
                len(catalog.features[key].dimension_names),
                "computed",
                names=tuple(catalog.features[key].dimension_names),
            )
    with Progress(images * len(catalog.camera_keys), "appearance of cameras", "image") as bar:
        cameras = {}
        for key in catalog.camera_keys:
            look = _look(key, [part], images, bar) if images else None
            cameras[key] = _camera(catalog, key, look)
    facts = RobotFacts(
        fps=float(catalog.fps),
        chunk=0,
        robot_type=catalog.robot_type or "",
        control_mode="",
        state=vectors["state"],
        action=vectors["action"] or VectorFacts.unmeasured("", ()),
        cameras=cameras,
        tasks=tuple(catalog.tasks[: RobotFacts.MOST_TASKS]),
        tasks_left_out=max(0, len(catalog.tasks) - RobotFacts.MOST_TASKS),
        episodes=catalog.num_episodes,
    )
    facts = _with_groups(catalog, facts)
    stated = _stated(catalog)
    facts = facts.completed(stated) if stated is not None else facts
    return Contract({"": facts}, {"datasets": {catalog.name: redact(catalog.root)}}, "dataset")


def _with_groups(catalog: Catalog, facts: RobotFacts) -> RobotFacts:
    """Return the facts with the groups of GR00T's meta/modality.json as roles of dimensions and
    cameras.
    """
    path = "meta/modality.json"
    if not catalog.files.exists(path):
        return facts
    groups = catalog.read_json(path)
    vectors: dict[str, Any] = {}
    try:
        for name in ("state", "action"):
            vector: VectorFacts | None = getattr(facts, name)
            width = vector.width if vector is not None else 0
            roles = np.full(width, "", object)
            for group, entry in groups.get(name, {}).items():
                roles[entry["start"] : entry["end"]] = group
            vectors[name] = vector and replace(vector, roles=tuple(roles.tolist()))
        roles_of = {
            entry["original_key"]: group for group, entry in groups.get("video", {}).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        where = catalog.files.where(path)
        fix = "write start and end of each group, and original_key of each camera"
        raise DatasetError(
            f"it is not as GR00T reads it: {error!r}", where=where, fix=fix
        ) from error
    cameras = {
        key: replace(camera, role=roles_of.get(key, "")) for key, camera in facts.cameras.items()
    }
    return replace(facts, **vectors, cameras=cameras)


def _stated(catalog: Catalog) -> RobotFacts | None:
    """Return the statements of a dataset about its robot; None without meta/contract.json. Raises
    DatasetError.
    """
    files = catalog.files
    path = f"meta/{Contract.FILE}"
    if not files.exists(path):
        return None
    return RobotFacts.read_stated(catalog.read_json(path), files.where(path))


def _camera(catalog: Catalog, key: str, look: CameraPrint | None) -> CameraFacts:
    return CameraFacts(
        key, catalog.features[key].size or (0, 0), look, color="RGB", layout="HWC", dtype="uint8"
    )


def _vector(
    part: EpisodeDataset, key: str, recorded: str, statistics: Statistics | None, modes: Modes
) -> VectorFacts:
    names = tuple(part.catalog.features[key].dimension_names)
    mode = describe_modes(modes[key], names)
    figures = {}
    if statistics is not None:
        figures = {name: getattr(statistics, name) for name in FIGURES}
    return VectorFacts.from_figures(recorded or key, figures, len(names), mode=mode, names=names)


def _look(
    camera: str, parts: Sequence[EpisodeDataset], count: int, bar: Progress
) -> CameraPrint | None:
    """Measure the appearance of a camera; None with a warning where an image cannot be read."""
    grids: list[np.ndarray] = []
    numbers: list[int] = []  # of the episode of each image, over all sources
    share = -(-count // len(parts))
    try:
        for part in parts:
            if len(grids) >= count:
                break
            images = EpisodeDataset(part.catalog, keys=[camera], frame_cache_bytes=0)
            rows = np.unique(
                np.linspace(0, len(part) - 1, min(share, count - len(grids)))
                .round()
                .astype(np.int64)
            )
            episodes, frames = part.locate(rows)
            ranks = np.unique(episodes, return_inverse=True)[1].reshape(-1)
            numbers += (ranks + 1 + max(numbers, default=-1)).tolist()
            for begin in range(0, len(rows), _BATCH):
                batch = images.batch(
                    episodes[begin : begin + _BATCH], frames[begin : begin + _BATCH]
                )[camera]
                grids += [shrink(image.permute(1, 2, 0).numpy()) for image in batch]
                bar.update(len(batch))
    except DatasetError as error:
        logger.warning("contract: the appearance of %s stays unknown: %s", camera, error)
        return None
    return CameraPrint.of_images(grids, numbers) if grids else None
