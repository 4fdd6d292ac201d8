"""Section of the report on the validation episodes with the largest losses: frames, recorded and predicted actions.

The losses are those that the run kept (`train/validation/episode_sums.py`). Images and recorded actions need the
dataset, predicted actions a checkpoint, too. Where one of these is missing, the section gives the reason in its place.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.batch_keys import ACTION
from understudy.errors import DatasetError, UnderstudyError, is_out_of_memory, summarize
from understudy.report import html, sparklines
from understudy.report.view.columns import Columns
from understudy.report.view.sheets import Sheets
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums, read_validated

if TYPE_CHECKING:
    from understudy.data.format.catalog import Catalog
    from understudy.load.validation.validation_data import ValidationData

Predict = Callable[[int, int, int], Mapping[str, Any]]

FRAMES = 8
"""Frames of a strip."""
WIDEST = 160
"""Pixels of a frame's width; wider ones are reduced."""
CURVES = 12
"""Joints that are shown without a click."""
RECORDED, PREDICTED = html.COLORS[0], html.COLORS[1]


def render_worst_episodes(run: RunDir, val: Sequence[Mapping[str, Any]], count: int, *, predict: bool = True) -> str:
    """Render the `count` episodes with the largest loss of the latest validation; "" where there are none.

    Args:
        run: the run.
        val: its validation records, oldest first.
        count: number of episodes.
        predict: whether to load a checkpoint for predicted actions.
    """
    if not val or not count or val[-1].get("scalar"):
        return ""
    found = read_validated(run, val)
    if found is None:
        return _note(f"{run.validation} has no losses by episode of these validations.")
    step, sums = found
    chosen = sums.largest(count)
    with ExitStack() as stack:
        validation, predicted, notes = _open(stack, run, step, predict)
        shown = _Shown(validation, predicted)
        cards = [shown.render(sums, index) for index in chosen.tolist()]
    about = (
        f"{len(chosen)} of the {len(sums.episode):,} episodes of the validation at step {step:,}, largest loss first."
    )
    return _note(" ".join([about, *notes]), legend=predicted is not None) + "".join(cards)


def _open(
    stack: ExitStack, run: RunDir, step: int, predict: bool
) -> "tuple[ValidationData | None, Predict | None, list[str]]":
    """Open the validation frames and the policy of the checkpoint of `step`, or the latest one; notes name failures."""
    from understudy.train.data.run_data import open_data
    from understudy.train.run import open_checkpoint
    from understudy.train.run_record import recorded_sources
    from understudy.train.validation.open_loop import EpisodeActions
    from understudy.train.validation.validation_loss import read_validation_data

    notes: list[str] = []
    if not predict:
        notes.append(f"Predicted actions are added by: understudy report {run.root}")
    elif run.is_active():
        notes.append("The run is active, so no policy is loaded beside it: there are no predicted actions yet.")
    else:
        try:
            which: int | str = step if step in checkpoint.list_steps(run.checkpoints) else "latest"
            state, validation = stack.enter_context(open_checkpoint(run.root, which))
            predicted = EpisodeActions(state, validation).predict
            return validation, predicted, [f"Actions are predicted by the checkpoint of step {state.step:,}."]
        except Exception as error:
            if not _is_expected(error):
                raise
            notes.append(f"There are no predicted actions: {error}")
    try:
        data = open_data(run.settings(), recorded_sources(run.read_record()), check_files=False)
        return read_validation_data(run.settings(), data), None, notes
    except Exception as error:
        if not _is_expected(error):
            raise
        return None, None, [f"The dataset cannot be opened, so there are losses alone: {error}"]


def _is_expected(error: Exception) -> bool:
    """Whether an error belongs to this machine, the dataset or the run's files; the report is useful without them."""
    return isinstance(error, UnderstudyError | OSError | ImportError) or is_out_of_memory(error)


class _Shown:
    """Cards of episodes.

    Args:
        validation: the datasets; None: they cannot be opened.
        predict: returns the predicted actions of an episode (`EpisodeActions.predict`); None: there are none.
    """

    def __init__(self, validation: "ValidationData | None", predict: Predict | None) -> None:
        self._validation, self._predict = validation, predict

    def render(self, sums: EpisodeSums, index: int) -> str:
        """Render the episode at an index of `sums`."""
        name, episode, loss = sums.names[sums.source[index]], int(sums.episode[index]), float(sums.losses()[index])
        figure = f"{loss:.4f}" if np.isfinite(loss) else "not finite"
        source = f"{escape(name)}, " if len(sums.names) > 1 else ""
        title = f"<h3>{source}episode {episode}: loss {figure}</h3>"
        samples = f"{int(sums.samples[index]):,} samples"
        if self._validation is None:
            return html.card(title, f"<small>{samples}</small>")
        try:
            names = self._validation.names
            number = 0 if len(names) == len(sums.names) == 1 else names.index(name)  # the only one may be renamed
            catalog = self._validation.datasets[number].catalog
            row = catalog.episodes.row_of(episode)
        except (ValueError, DatasetError):
            return html.card(title, f"<small>{samples}; the dataset has no such episode</small>")
        length = int(catalog.episodes.lengths[row])
        tasks = [catalog.tasks[task] for task in catalog.episodes.tasks_of(row) if 0 <= task < len(catalog.tasks)]
        about = escape("; ".join([f"{samples} of {length:,} frames", *tasks]))
        return html.card(
            title,
            f"<p><small>{about}</small></p>",
            *_strips(catalog, self._validation.cameras, row, length),
            self._actions(number, catalog, episode, row, length),
        )

    def _actions(self, number: int, catalog: "Catalog", episode: int, row: int, length: int) -> str:
        """Render recorded and predicted actions, a curve for each joint."""
        assert self._validation is not None
        values, errors = Columns(catalog).read(row)
        if ACTION not in values:
            return _small(errors.get(ACTION) or errors.get("") or "there are no recorded actions")
        recorded = np.asarray(values[ACTION], np.float64).reshape(length, -1)
        names = self._validation.action_names(number)
        found, note = None, ""
        if self._predict is not None:
            try:
                found = self._predict(number, episode, length)
            except Exception as error:
                if not _is_expected(error):
                    raise
                note = _small(f"no predicted actions: {summarize(error)}")
        cells = []
        for joint, name in enumerate(names):
            lines = [recorded[:, joint]]
            extent = f" over {length / catalog.fps:.3g} s"
            if found is not None:
                lines.append(np.asarray(found["actions"])[:, joint])
                extent += f", MAE {found['mae'][joint]:.3g}"
            cells.append(sparklines.curves(name, lines, (RECORDED, PREDICTED), extent))
        first, rest = html.grid(cells[:CURVES], "curves"), cells[CURVES:]
        if not rest:
            return note + first
        folded = f"<details><summary>{len(rest)} more joints</summary>{html.grid(rest, 'curves')}</details>"
        return f'{note}{first}<div class="gap"></div>{folded}'


def _strips(catalog: "Catalog", cameras: Sequence[str], row: int, length: int) -> list[str]:
    """Render a strip of frames of each camera of the policy, or the reason why its frames cannot be read."""
    sheets, strips = Sheets(catalog), []
    frames = np.unique(np.linspace(0, length - 1, min(FRAMES, length)).round().astype(np.int64))
    for camera in cameras:
        if camera not in catalog.camera_keys:
            continue
        try:
            images = [_reduced(image) for image in sheets.frames(camera, row, frames)]
        except DatasetError as error:
            strips.append(_small(f"{camera}: {error}"))
            continue
        title = f"<small>{escape(camera)}</small>" if len(cameras) > 1 else ""
        strips.append(title + html.film(images, [f"frame {frame}" for frame in frames], camera))
    return strips


def _reduced(image: np.ndarray) -> np.ndarray:
    """Reduce an image uint8 [H, W, 3] to at most `WIDEST` pixels of width."""
    from PIL import Image

    height, width = image.shape[:2]
    if width <= WIDEST:
        return image
    size = WIDEST, max(1, round(height * WIDEST / width))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))


def _small(text: str) -> str:
    return f'<p class="soft"><small>{escape(text)}</small></p>'


def _note(text: str, legend: bool = False) -> str:
    keys = "".join(
        f'<span class="key" style="background:{color}"></span>{name} '
        for color, name in ((RECORDED, "recorded"), (PREDICTED, "predicted"))
    )
    units = "Actions in the robot's units, from the least to the greatest value; MAE is the mean absolute error."
    shown = (
        f"<p>{keys}<br><small>{units} Frame by frame: <code>understudy view RUN</code>.</small></p>" if legend else ""
    )
    return html.card(f'<p class="soft">{escape(text)}</p>{shown}')
