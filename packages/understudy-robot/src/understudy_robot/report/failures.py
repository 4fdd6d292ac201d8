"""Failed episodes of a rollout next to the successful ones, and the run that trained the policy:
facts with numbers.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from understudy import RunDir, Verdict
from understudy_base import ConfigError, Record
from understudy_client import VectorFacts
from understudy_kit import wilson_interval
from understudy_robot.contracts.trace import Diagnosis, Played
from understudy_robot.rollout.result import Episode

OVERFIT = 3.0
"""Validation loss over training loss from which a run is named."""
_OFTEN = 0.2  # share of the failed episodes from which a difference is named
_STILL = 0.05  # training deviations within which a state that moves no more stays
_STILL_SHARE = 0.5  # share of an episode's steps that it stands still to be named


@dataclass(frozen=True)
class Reason:
    """A fact about failed episodes, or about the run whose policy failed.

    Attributes:
        kind: "overfit", "not the best", "failed", "error", "other task", "task", "outside training"
            or "stands still".
        value: its number: a ratio of losses for the first two, otherwise failed episodes.
        text: one line, with the remedy where there is one.
        successes: successful episodes with the same; None where that has no sense.
        episode: number of the first failed episode with it; None for a fact about the run.
        step: control step of it in that episode, or training step; None for a whole episode.
    """

    kind: str
    value: float
    text: str
    successes: int | None = None
    episode: int | None = None
    step: int | None = None


def read_episodes(trace: Path) -> tuple[Episode, ...] | None:
    """Read the episodes of the result beside the trace of a rollout; None where there is none, as
    of a server's trace.

    Raises:
        ConfigError: the file is no result of a rollout.
    """
    path = trace.with_suffix(".json")
    if not path.is_file():
        return None
    try:
        return tuple(map(_read_episode, json.loads(path.read_bytes())["episodes"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        fix = "run the rollout again"
        raise ConfigError(
            f"result: {path} is none of a rollout ({type(error).__name__}: {error}); {fix}"
        ) from error


def _read_episode(stored: Record) -> Episode:
    """Read an episode of a result. Raises TypeError, ValueError or KeyError for another value."""
    taken = stored["taken"]
    if taken is not None:
        taken = _text(taken)
    return Episode(
        episode=int(stored["episode"]),
        seed=int(stored["seed"]),
        scene=_text(stored["scene"]),
        told=_text(stored["told"]),
        taken=taken,
        steps=int(stored["steps"]),
        error=_text(stored["error"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def failure_reasons(
    episodes: Sequence[Episode], diagnosis: Diagnosis, run: RunDir | None = None
) -> list[Reason]:
    """List facts about the failed episodes of a rollout; none where all succeed.

    Args:
        episodes: of the result of a rollout (`read_episodes`).
        diagnosis: of its trace.
        run: run whose policy played; None: unknown.
    """
    failed = [episode for episode in episodes if not episode.success]
    if not failed:
        return []
    of_run = _of_run(run, diagnosis.step) if run is not None else ()
    return [
        *of_run,
        *_of_outcomes(failed, episodes),
        *_of_tasks(episodes),
        *_of_states(failed, episodes, diagnosis),
    ]


def _of_run(run: RunDir, step: int | None) -> Iterator[Reason]:
    """Losses of the run, and the step of the policy that played next to that of the lowest
    validation loss.
    """
    if not (run.config.is_file() and run.metrics.is_file()):
        return
    verdict = run.verdict()
    if verdict is None:
        return
    loss = f"{verdict.term} loss" if verdict.term else "loss"
    if verdict.ratio is not None and verdict.ratio >= OVERFIT:
        count = _recorded_episodes(run)
        remedy = (
            f"its data are {count:,} episodes: record more" if count else "record more episodes"
        )
        text = (
            f"overfit: the validation {loss}, {verdict.validation:.4g} at step {verdict.step:,}, "
            f"is {verdict.ratio:.3g} times the training {loss}, {verdict.training:.4g}; {remedy}"
        )
        yield Reason("overfit", verdict.ratio, text, step=verdict.step)
    yield from _not_the_best(run, verdict, step)


def _recorded_episodes(run: RunDir) -> int:
    """Number of episodes of the run's datasets; 0 where its record cannot be read."""
    try:
        dataset = run.read_record()["dataset"]
        return sum(
            count
            for name, count in dataset.items()
            if name == "episodes" or name.endswith(": episodes")
        )
    except (ConfigError, KeyError, TypeError, AttributeError):
        return 0


def _not_the_best(run: RunDir, verdict: Verdict, step: int | None) -> Iterator[Reason]:
    """The policy that played, where another step has a lower validation loss."""
    records = [record for record in run.records("val") if record["step"] == step]
    loss = verdict.loss_of(records[-1]) if records else None
    if loss is None or verdict.lowest <= 0 or loss < (1 + verdict.FALL) * verdict.lowest:
        return
    is_kept = (run.checkpoints / f"step-{verdict.lowest_step:08d}").is_dir()
    export = f"understudy export {run.root} --checkpoint {verdict.lowest_step}"
    remedy = (
        export
        if is_kept
        else "that checkpoint is gone; a training with --checkpoint.keep-best loss keeps it"
    )
    ratio = loss / verdict.lowest
    text = (
        f"the policy of step {step:,} played, whose validation loss is {loss:.4g}, {ratio:.3g} "
        f"times that of step {verdict.lowest_step:,}: {remedy}"
    )
    yield Reason("not the best", ratio, text, step=step)


def _of_outcomes(failed: Sequence[Episode], episodes: Sequence[Episode]) -> Iterator[Reason]:
    """How many failed, and how they ended."""
    first = failed[0]
    successes = len(episodes) - len(failed)
    low, high = wilson_interval(successes, len(episodes))
    lengths = f"after {np.median([of.steps for of in failed]):.0f} steps"
    if successes:
        usual = np.median([episode.steps for episode in episodes if episode.success])
        lengths += f", where successful ones take {usual:.0f}"
    text = (
        f"{len(failed)} of {len(episodes)} episodes fail (success {low:.0%} to {high:.0%} in 95 "
        f"%), in the median {lengths}; first: episode {first.episode}"
    )
    yield Reason("failed", len(failed), text, successes, first.episode, first.steps)
    if broken := [episode for episode in failed if episode.error]:
        of = broken[0]
        text = (
            f"{len(broken)} of {len(failed)} failed episodes end by an error; first: episode "
            f"{of.episode}, step {of.steps}: {of.error}"
        )
        yield Reason("error", len(broken), text, None, of.episode, of.steps)
    if other := [episode for episode in failed if episode.taken not in (None, episode.told)]:
        of = other[0]
        text = (
            f"{len(other)} of {len(failed)} failed episodes complete another task; first: episode "
            f"{of.episode}, step {of.steps}: {of.taken!r} for {of.told!r}"
        )
        yield Reason("other task", len(other), text, None, of.episode, of.steps)


def _of_tasks(episodes: Sequence[Episode]) -> Iterator[Reason]:
    """Tasks whose success rate is below that of the others, by intervals that do not overlap."""
    for task in dict.fromkeys(episode.told for episode in episodes):
        own = [episode.success for episode in episodes if episode.told == task]
        others = [episode.success for episode in episodes if episode.told != task]
        if (
            others
            and wilson_interval(sum(own), len(own))[1]
            < wilson_interval(sum(others), len(others))[0]
        ):
            first = next(of for of in episodes if of.told == task and not of.success)
            text = (
                f"task {task!r} succeeds in {sum(own)} of {len(own)} episodes, the others in "
                f"{sum(others)} of {len(others)}; first: episode {first.episode}"
            )
            yield Reason("task", len(own) - sum(own), text, sum(own), first.episode)


def _of_states(
    failed: Sequence[Episode], episodes: Sequence[Episode], diagnosis: Diagnosis
) -> Iterator[Reason]:
    """Where the states of failed episodes leave the range of training, or stand still, oftener than
    of successful.
    """
    facts = diagnosis.facts.state
    if facts is None or np.isnan(facts.center).any():
        return
    known: dict[str, tuple[str, Callable[[Played, VectorFacts], tuple[int, str] | None]]] = {
        "outside training": ("leave the range of training", _leaves),
        "stands still": (
            f"stand still for {_STILL_SHARE:.0%} of their steps or more, to their end",
            _stands,
        ),
    }
    for kind, (does, find) in known.items():
        found: dict[int, tuple[int, str]] = {}
        for number, played in diagnosis.played.items():
            place = find(played, facts)
            if place is not None:
                found[number] = place
        bad = [episode.episode for episode in failed if episode.episode in diagnosis.played]
        good = [
            episode.episode
            for episode in episodes
            if episode.success and episode.episode in diagnosis.played
        ]
        hits = [number for number in bad if number in found]
        successes = sum(number in found for number in good)
        # of successful ones the same share
        is_alike = bool(good) and len(hits) * len(good) <= successes * len(bad)
        if not hits or is_alike or len(hits) < _OFTEN * len(bad):
            continue
        step, detail = found[hits[0]]
        beside = f", and {successes} of {len(good)} successful ones" if good else ""
        text = (
            f"{len(hits)} of {len(bad)} failed episodes {does}{beside}; first: episode "
            f"{hits[0]}, step {step}: {detail}"
        )
        yield Reason(kind, len(hits), text, successes, hits[0], step)


def _leaves(played: Played, facts: VectorFacts) -> tuple[int, str] | None:
    """First step whose state is outside the range of training, and which number is."""
    values = played.states
    is_outside = (values < facts.low - facts.margin) | (values > facts.high + facts.margin)
    places = np.argwhere(is_outside).tolist()
    if not places:
        return None
    row, column = places[0]
    place = f"{facts.names[column]} is {values[row, column]:.3g}"
    return int(
        played.steps[row]
    ), f"{place}, in training {facts.low[column]:.3g} to {facts.high[column]:.3g}"


def _stands(played: Played, facts: VectorFacts) -> tuple[int, str] | None:
    """First step from which the state stays where it ends, if that is a large part of the
    episode.
    """
    away = np.abs(played.states - played.states[-1]) > _STILL * facts.spread
    moving = np.flatnonzero(away.any(axis=1))
    row = int(moving[-1]) + 1 if len(moving) else 0
    last = int(played.steps[-1])
    begun = int(played.steps[row])
    if last == 0 or len(played.steps) - row < 3 or last - begun < _STILL_SHARE * last:
        return None
    return begun, f"no number moves by {_STILL:g} deviations of training until step {last}"


def describe(reasons: Sequence[Reason]) -> list[list[str]]:
    """Return the rows of a table: kind, number, successful episodes with the same, first episode
    and step.
    """
    return [
        [of.kind, f"{of.value:.3g}", *map(_number, (of.successes, of.episode, of.step))]
        for of in reasons
    ]


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
