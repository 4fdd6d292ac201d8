"""Open-loop action error: distance between sampled and recorded actions on every N-th validation
frame.

The policy gets the recorded observation and predicts a chunk of actions, from noise that belongs to
the sample. The error is the difference to the recorded chunk per joint in the robot's units, over
the remaining steps of the episode. It does not measure success: a policy may reach the goal by
other actions.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.common.normalizer import of_head
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.policy import Policy
from understudy.train.augment_batch import draw_on_device
from understudy.train.state import TrainState
from understudy.train.validation.observer import Chunk, Evaluation
from understudy_base import ACTION, MODE, TASK, Batch, ConfigError
from understudy_data import ValidationData


class OpenLoop:
    """Observes open-loop errors.

    Args:
        evaluation: policy, samples and ranks; a mode that leads to actions.
        every: take every N-th validation frame of each source, from its first one on.
    """

    def __init__(self, evaluation: Evaluation, every: int) -> None:
        self._evaluation = evaluation
        self._every = every
        self._chosen = np.flatnonzero(evaluation.held.place % every == 0)
        width = evaluation.policy.config.action_dim
        rows = {"squared": width, "absolute": width, "count": width, "normalised": 1, "elements": 1}
        # sums over the steps of the chunk of each chosen sample
        self._figures = {
            name: evaluation.zeros(size, len(self._chosen)) for name, size in rows.items()
        }

    @staticmethod
    def applies(evaluation: Evaluation) -> bool:
        """Return whether the mode leads to actions."""
        leads_to_actions = LossTerm.FLOW in TaskMode.TRAINS[evaluation.mode]
        return leads_to_actions and predicts_actions(evaluation.policy.config)

    def add(self, chunk: Chunk) -> None:
        """Write the figures of the chosen samples of a chunk.

        There is at least one forward pass, so that all ranks run equally many.
        """
        policy = self._evaluation.policy
        first, last = np.searchsorted(self._chosen, [chunk.part.start, chunk.part.stop])
        chosen = self._chosen[first:last] - chunk.part.start
        some = chosen if len(chosen) else np.zeros(1, np.int64)
        rows = torch.from_numpy(some)
        inputs = policy.from_present(
            {key: _rows(value, rows) for key, value in chunk.batch.items()}
        )
        recorded = inputs[ACTION]
        proposed = predict_actions(
            policy,
            inputs,
            self._evaluation.held.identity(chunk.part)[some],
            self._evaluation.seed,
            self._evaluation.mode,
        )
        if not chunk.counts:
            return
        absent = inputs[f"{ACTION}_is_pad"][..., None].expand(recorded.shape)  # [n, T, A]
        if (padded := inputs.get(f"{ACTION}_dim_is_pad")) is not None:
            absent = absent | padded[:, None]
        difference = torch.where(absent, 0.0, proposed - recorded.float()).double()
        normalizer = policy.normalizer
        head = policy.normalizer.head(inputs)
        scaled = normalizer.action.normalize(proposed, head) - normalizer.action.normalize(
            recorded, head
        )
        scaled = torch.where(absent, 0.0, scaled).double()
        # A dimension that never changed in training has no scale to be measured by.
        moves = of_head(normalizer.action.spread, head)[:, None] != 0  # [n or 1, 1, A]
        elements = (~absent & moves).sum(dim=(1, 2))
        figures = {
            "squared": difference.square().sum(dim=1).T,
            "absolute": difference.abs().sum(dim=1).T,
            "count": (~absent).sum(dim=1).T,
            "normalised": scaled.square().sum(dim=(1, 2))[None],
            "elements": elements[None],
        }
        for name, values in figures.items():
            self._figures[name][:, first:last] = values[:, : len(chosen)]

    def result(self, readable: np.ndarray) -> dict[str, Any]:
        """Return "open_loop", averages over the samples.

        It has "every", "normalised": mean squared error in units of the normalization's spread,
        over all samples, joints and steps (without joints that never move; None where none does),
        "sources": {name: {"samples", "normalised", "mse": {joint: mean squared error in the robot's
        units}, "mae": {joint: mean absolute error}}}.
        """
        held = self._evaluation.held
        counted = readable[self._chosen]
        figures = {
            name: self._evaluation.gather(rows)[:, counted] for name, rows in self._figures.items()
        }
        source = held.source[self._chosen[counted]]
        sources = {}
        for number, name in enumerate(held.names):
            of_source = np.flatnonzero(source == number)
            counts = [math.fsum(row) for row in figures["count"][:, of_source]]
            joints = held.action_names(number)

            def mean(
                kind: str, columns: np.ndarray = of_source, over: list[float] = counts
            ) -> list[float]:
                return [
                    math.fsum(row) / max(1.0, count)
                    for row, count in zip(figures[kind][:, columns], over)
                ]

            sources[name] = {
                "samples": len(of_source),
                "normalised": _ratio(
                    figures["normalised"][0, of_source], figures["elements"][0, of_source]
                ),
                "mse": dict(zip(joints, mean("squared"))),
                "mae": dict(zip(joints, mean("absolute"))),
            }
        normalized = _ratio(figures["normalised"][0], figures["elements"][0])
        return {"open_loop": {"every": self._every, "normalised": normalized, "sources": sources}}


def predict_actions(policy: Policy, batch: Batch, identity: Tensor, seed: int, mode: str) -> Tensor:
    """Predict chunks of actions for validation samples: [n, T, A] in the robot's units.

    Args:
        policy: the policy.
        batch: the samples, prepared, on the device.
        identity: int64 [n], `ValidationData.identity` of the samples, which keys the noise.
        seed: seed of the noise.
        mode: task mode that leads to actions.
    """
    draws = draw_on_device(
        policy.random_spec("act"), seed, identity, batch[ACTION].device, "open loop"
    )
    return policy.act(batch, draws, EpisodeActions.STEPS, mode)


def _rows(value: Any, some: Tensor) -> Any:
    """The chosen rows of a tensor, or of a list."""
    if isinstance(value, Tensor):
        return value.index_select(0, some.to(value.device))
    return [value[i] for i in some.tolist()]


def _ratio(sums: np.ndarray, counts: np.ndarray) -> float | None:
    """Sum of `sums` / sum of `counts`; None for no counts, since 0 would be the best figure."""
    count = math.fsum(counts)
    return math.fsum(sums) / count if count else None


BATCH = 16
"""Chunks of a forward pass."""


class EpisodeActions:
    """Predicted actions of the episodes of a validation. Safe in threads, one episode at a time.

    Args:
        state: the state with the weights to evaluate.
        held: the validation frames.

    Raises:
        ConfigError: the run trained no policy to act.
    """

    STEPS: ClassVar[int] = 10
    """Euler steps of the sampling."""

    def __init__(self, state: TrainState, held: ValidationData) -> None:
        self._mode = state.modes.val_mode()
        network = state.policy.config
        if LossTerm.FLOW not in TaskMode.TRAINS[self._mode] or not predicts_actions(network):
            of = f"mode {state.modes.mode}, policy.type {network.type}"
            raise ConfigError(f"the run trained no policy to act: {of}")
        self._state = state
        self._held = held
        self._lock = threading.Lock()

    def episodes(self, source: int) -> np.ndarray:
        """Return the ids of the validation episodes of a source, int64, ascending."""
        return np.unique(self._held.episode[self._held.source == source])

    @torch.no_grad()
    def chunks(self, source: int, episode: int) -> Iterator[tuple[int, int, np.ndarray, str]]:
        """Predict the chunks of an episode one by one: the rounding of a batch may depend on its
        size.

        Args:
            source: index of the source in `held`.
            episode: its id.

        Yields:
            Frame; identity, which keys the noise; actions, float32 [T, A] in the robot's units; and
            instruction.

        Raises:
            ConfigError: a frame cannot be read.
        """
        held = self._held
        policy = self._state.eval_policy.eval()
        rows = np.flatnonzero((held.source == source) & (held.episode == episode))
        chosen = rows[choose_starts(held.frame[rows], policy.config.chunk)]
        for number in chosen.tolist():
            part = slice(number, number + 1)
            batch = held.read(part)
            if error := batch.pop(ValidationData.UNREADABLE):
                reason = next(iter(error.values()))
                raise ConfigError(f"episode {episode}: a frame cannot be read: {reason}")
            identity = held.identity(part)
            task = batch[TASK][0]
            inputs = policy.batch_to_device(policy.preprocess(batch))
            [actions] = predict_actions(policy, inputs, identity, self._state.seed, self._mode)
            frame = int(held.frame[number])
            yield frame, int(identity[0]), actions.float().cpu().numpy(), task

    @torch.no_grad()
    def predict(self, source: int, episode: int, length: int) -> dict[str, Any]:
        """Predict the actions of an episode.

        Args:
            source: index of the source in `held`.
            episode: its id.
            length: frames of the episode.

        Returns:
            "chunk": actions of a prediction; "starts": frames of the predictions, ascending;
            "actions": float64 [length, A] in the robot's units, NaN without a prediction; "mae":
            [A], mean absolute error; "names" of the A dimensions; "unreadable": number of frames
            that could not be read.

        Raises:
            DatasetError: a frame cannot be read.
        """
        held = self._held
        state = self._state
        rows_of_episode = np.flatnonzero((held.source == source) & (held.episode == episode))
        chunk = state.eval_policy.config.chunk
        chosen = rows_of_episode[choose_starts(held.frame[rows_of_episode], chunk)]
        names = held.action_names(source)
        actions = np.full((length, len(names)), np.nan)
        recorded = np.full((length, len(names)), np.nan)
        mask = np.zeros(len(held), bool)
        mask[chosen] = True
        part = held.select(mask)
        starts: list[int] = []
        with self._lock:
            policy = state.eval_policy.eval()
            for low in range(0, len(part), BATCH):
                span = slice(low, min(low + BATCH, len(part)))
                batch = policy.preprocess(part.read(span))
                unreadable = batch.pop(ValidationData.UNREADABLE)
                if self._mode != TaskMode.POLICY:
                    batch[MODE] = torch.full(
                        (span.stop - span.start,), TaskMode.ALL.index(self._mode)
                    )
                inputs = policy.from_present(policy.batch_to_device(batch))
                proposed = predict_actions(
                    policy, inputs, part.identity(span), state.seed, self._mode
                )
                for row in range(span.stop - span.start):
                    if row in unreadable:
                        continue
                    first = int(part.frame[low + row])
                    last = min(first + chunk, length)
                    starts.append(first)
                    for target, values in ((actions, proposed), (recorded, inputs[ACTION])):
                        steps = values[row, : last - first, : len(names)].double().cpu().numpy()
                        target[first:last] = steps
                    recorded[first:last][
                        inputs[f"{ACTION}_is_pad"][row, : last - first].cpu().numpy()
                    ] = np.nan
        predicted = ~np.isnan(actions + recorded).any(1) if len(names) else np.zeros(length, bool)
        mae = np.full(len(names), np.nan)
        if predicted.any():
            mae = np.abs(actions - recorded)[predicted].mean(0)
        return {
            "chunk": chunk,
            "starts": starts,
            "actions": actions,
            "mae": mae,
            "names": names,
            "unreadable": len(part) - len(starts),
        }


def choose_starts(frames: np.ndarray | Sequence[int], chunk: int) -> np.ndarray:
    """Return indexes of the first of `frames` (ascending) and of each next one that is `chunk` or
    more after it.
    """
    chosen: list[int] = []
    index = 0
    while index < len(frames):
        chosen.append(index)
        index = int(np.searchsorted(frames, frames[index] + chunk))
    return np.asarray(chosen, np.int64)
