"""Section of the report on the validation episodes with the largest losses: frames, recorded and
predicted actions.

The losses are those that the run kept (`train/validation/episode_sums.py`). Images and recorded
actions need the dataset, predicted actions a checkpoint, too. Where one of these is missing, the
section gives the reason in its place.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums, read_validated
from understudy_base import (
    ACTION,
    DataAccessError,
    DatasetError,
    Record,
    Records,
    UnderstudyError,
    is_out_of_memory,
    summarize,
)
from understudy_kit import Block, Blocks, Curve, as_rgb

if TYPE_CHECKING:
    from understudy.train.data.run_data import RunData
    from understudy_data import EpisodeDataset, ValidationData

Predict = Callable[[int, int, int], Record]

FRAMES = 8
"""Frames of a strip."""
WIDEST = 160
"""Pixels of a frame's width; wider ones are reduced."""
CURVES = 12
"""Joints that are shown without a click."""
UNITS = (
    "Actions in the robot's units; MAE is the mean absolute error. A prediction begins at a "
    "recorded observation, after each chunk."
)


def render_worst_episodes(
    run: RunDir,
    val: Records,
    count: int,
    *,
    predict: bool = True,
    opened: "Callable[[], RunData] | None" = None,
) -> Blocks:
    """Render the `count` episodes with the largest loss of the latest validation; none where there
    are none.

    Args:
        run: The run.
        val: Its validation records, oldest first.
        count: Number of episodes.
        predict: Whether to load a checkpoint for predicted actions.
        opened: Returns the data that the run started with, where the caller opens it for others,
            too.
    """
    if not val or not count or val[-1].get("scalar"):
        return []
    validated = read_validated(run, val)
    if validated is None:
        return [
            Block.card(
                "",
                Block.paragraph(f"{run.validation} has no losses by episode of these validations."),
            )
        ]
    step, sums = validated
    chosen = sums.largest(count)
    with ExitStack() as stack:
        validation, predicted, notes = _open(stack, run, step, predict, opened)
        cards = _Cards(run, validation, predicted)
        episodes = [cards.render(sums, index) for index in chosen.tolist()]
    about = (
        f"{len(chosen)} of the {len(sums.episode):,} episodes of the validation at step "
        f"{step:,}, largest loss first."
    )
    legend = Block.paragraph(UNITS) if predicted is not None else None
    key = Block.key([Curve("recorded", [], [], 0), Curve("predicted", [], [], 1)])
    ids = sorted({str(episode) for episode in sums.episode[chosen].tolist()}, key=int)
    command = Block.paragraph(f"understudy view {run.root} --episodes {' '.join(ids)}", "code")
    text = Block.paragraph(" ".join([about, *notes]))
    return [
        Block.card("", text, legend, key if legend else None, cards.horizon_chart(), command),
        *episodes,
    ]


def _open(
    stack: ExitStack,
    run: RunDir,
    step: int,
    predict: bool,
    opened: "Callable[[], RunData] | None",
) -> "tuple[ValidationData | None, Predict | None, list[str]]":
    """Open the validation frames and the policy of the checkpoint of `step`, or the latest one;
    notes name failures.
    """
    from understudy.train.data.run_data import open_data
    from understudy.train.data.updates import recorded_sources
    from understudy.train.run import open_checkpoint
    from understudy.train.validation.open_loop import EpisodeActions
    from understudy.train.validation.validation_loss import read_validation_data

    notes: list[str] = []
    if not predict:
        notes.append(f"Predicted actions are added by: understudy report {run.root}")
    elif run.is_active():
        notes.append(
            "The run is active, so no policy is loaded: there are no predicted actions yet."
        )
    else:
        try:
            chosen: int | str = step if step in checkpoint.list_steps(run.checkpoints) else "latest"
            state, validation = stack.enter_context(open_checkpoint(run.root, chosen))
            predicted = EpisodeActions(state, validation).predict
            return (
                validation,
                predicted,
                [f"Actions are predicted by the checkpoint of step {state.step:,}."],
            )
        except Exception as error:
            if not _is_expected(error):
                raise
            notes.append(f"There are no predicted actions: {error}")
    try:
        config = run.settings()
        if opened is None:
            data = open_data(config, recorded_sources(run.read_record()), check_files=False)
        else:
            data = opened()
        return read_validation_data(config, data), None, notes
    except Exception as error:
        if not _is_expected(error):
            raise
        return None, None, [f"The dataset cannot be opened, so there are losses alone: {error}"]


def _is_expected(error: Exception) -> bool:
    """Whether an error belongs to this machine, the dataset or the run's files; the report is
    useful without them.
    """
    return isinstance(error, UnderstudyError | OSError | ImportError) or is_out_of_memory(error)


class _Cards:
    """Cards of episodes.

    Args:
        run: The run.
        validation: The datasets; None: they cannot be opened.
        predict: Predicted actions of an episode (`EpisodeActions.predict`); None: there are none.
    """

    def __init__(
        self, run: RunDir, validation: "ValidationData | None", predict: Predict | None
    ) -> None:
        self._run = run
        self._validation = validation
        self._predict = predict
        self._errors: list[tuple[np.ndarray, np.ndarray]] = []

    def render(self, sums: EpisodeSums, index: int) -> Block:
        """Render the episode at an index of `sums`."""
        name = sums.names[sums.source[index]]
        episode = int(sums.episode[index])
        loss = float(sums.losses()[index])
        figure = f"{loss:.4f}" if np.isfinite(loss) else "not finite"
        prefix = f"{name}, " if len(sums.names) > 1 else ""
        title = f"{prefix}episode {episode}: loss {figure}"
        samples = f"{int(sums.samples[index]):,} samples"
        if self._validation is None:
            return Block.card(title, note=samples)
        try:
            names = self._validation.names
            # the only one may be renamed
            source = 0 if len(names) == len(sums.names) == 1 else names.index(name)
            dataset = self._validation.datasets[source]
            catalog = dataset.catalog
            row = catalog.episodes.row_of(episode)
        except (ValueError, DatasetError):
            return Block.card(title, note=f"{samples}; the dataset has no such episode")
        length = int(catalog.episodes.lengths[row])
        tasks = [
            catalog.tasks[task]
            for task in catalog.episodes.tasks_of(row)
            if 0 <= task < len(catalog.tasks)
        ]
        return Block.card(
            title,
            *_strips(dataset, self._validation.cameras, row, length),
            *self._action_charts(source, dataset, episode, row),
            note="; ".join([f"{samples} of {length:,} frames", *tasks]),
        )

    def horizon_chart(self) -> Block | None:
        """Draw the error of the predicted actions over the chunk, the mean of the joints; None
        without predictions.
        """
        if not self._errors:
            return None
        offsets, errors = (np.concatenate(parts) for parts in zip(*self._errors))
        counts = np.bincount(offsets)
        means = np.bincount(offsets, errors)[counts > 0] / counts[counts > 0]
        lines = [Curve("mean of these episodes", np.flatnonzero(counts) + 1, means, 1, points=True)]
        label = "mean absolute error, share of the joint's range"
        return Block.chart(
            "error over the horizon of a chunk",
            "actions after the observation",
            label,
            lines,
            height=200,
        )

    def _action_charts(
        self, source: int, dataset: "EpisodeDataset", episode: int, row: int
    ) -> Blocks:
        """Draw recorded and predicted actions, a chart for each joint."""
        assert self._validation is not None
        catalog = dataset.catalog
        length = int(catalog.episodes.lengths[row])
        if ACTION not in catalog.features:
            return [Block.paragraph("there are no recorded actions")]
        try:
            actions = dataset.recorded_values(ACTION, episode)
        except DataAccessError as error:
            return [Block.paragraph(str(error))]
        recorded = np.asarray(actions, np.float64).reshape(length, -1)
        predicted = None
        note = None
        if self._predict is not None:
            try:
                predicted = self._predict(source, episode, length)
                self._errors.append(_horizon_errors(recorded, predicted))
            except Exception as error:
                if not _is_expected(error):
                    raise
                note = Block.paragraph(f"no predicted actions: {summarize(error)}")
        names = self._validation.action_names(source)
        is_still = np.ptp(recorded, axis=0) == 0
        if predicted is not None:
            is_still &= np.asarray(predicted["mae"]) == 0
        charts = [
            _joint_chart(name, joint, recorded, predicted, catalog.fps)
            for joint, name in enumerate(names)
            if not is_still[joint]
        ]
        still = ", ".join(name for name, flag in zip(names, is_still) if flag)
        more_joints = Block.grid(charts[CURVES:], "joints")
        folded = None
        if more_joints:
            folded = Block.fold(f"{len(charts) - CURVES} more joints", more_joints)
        constant = Block.paragraph(f"constant: {still}") if still else None
        return [note, Block.grid(charts[:CURVES], "joints"), folded, constant]


def _joint_chart(
    name: str, joint: int, recorded: np.ndarray, predicted: Record | None, fps: float
) -> Block | None:
    lines = [Curve.from_frames("recorded", recorded[:, joint], fps, 0)]
    unit = f"{name} (robot's units)"
    if predicted is not None:
        label = f"predicted, MAE {predicted['mae'][joint]:.3g}"
        unit = f"{name}, MAE {predicted['mae'][joint]:.3g}"
        starts = [start / fps for start in predicted["starts"]]
        lines.append(
            Curve.from_frames(
                label, np.asarray(predicted["actions"])[:, joint], fps, 1, starts=starts
            )
        )
    return Block.chart(name, "time, s", unit, lines, zero=False, bare=True, height=150)


def _horizon_errors(recorded: np.ndarray, predicted: Record) -> tuple[np.ndarray, np.ndarray]:
    """Offsets int64 (N,) in a chunk, and absolute errors (N,) there, as shares of a joint's range
    in the episode.
    """
    extent = np.ptp(recorded, axis=0)
    errors = np.abs(np.asarray(predicted["actions"]) - recorded)[:, extent > 0] / extent[extent > 0]
    frames = np.arange(len(errors))
    starts = np.asarray(predicted["starts"], np.int64)
    offsets = frames
    if len(starts):
        offsets = frames - starts[np.maximum(np.searchsorted(starts, frames, side="right") - 1, 0)]
    is_finite = np.isfinite(errors)
    return np.broadcast_to(offsets[:, None], errors.shape)[is_finite], errors[is_finite]


def _strips(dataset: "EpisodeDataset", cameras: Sequence[str], row: int, length: int) -> Blocks:
    """Render a strip of frames of each camera of the policy, or the reason why its frames cannot be
    read.
    """
    catalog = dataset.catalog
    recorded = dataset.recorded_images()
    strips = Blocks()
    frames = np.unique(np.linspace(0, length - 1, min(FRAMES, length)).round().astype(np.int64))
    for camera in cameras:
        if camera not in catalog.camera_keys:
            continue
        try:
            images = [_reduced(image) for image in as_rgb(recorded.read(camera, row, frames))]
        except DataAccessError as error:
            strips.append(Block.paragraph(f"{camera}: {error}"))
            continue
        title = Block.paragraph(camera) if len(cameras) > 1 else None
        strips += [title, Block.film(images, [f"frame {frame}" for frame in frames], camera)]
    return strips


def _reduced(image: np.ndarray) -> np.ndarray:
    """Reduce an image uint8 [H, W, 3] to at most `WIDEST` pixels of width."""
    from PIL import Image

    height, width = image.shape[:2]
    if width <= WIDEST:
        return image
    size = WIDEST, max(1, round(height * WIDEST / width))
    return np.asarray(
        Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    )
