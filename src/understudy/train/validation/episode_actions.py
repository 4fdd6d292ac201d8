"""Actions that a policy predicts over a validation episode, chunk after chunk, beside the recorded ones.

The policy gets the recorded observation at the first frame, at the first frame after that chunk, and so on, with the
noise of the open-loop error (`open_loop.py`). Nothing is executed: each chunk begins at a recorded state.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from understudy.batch_keys import ACTION, MODE
from understudy.errors import ConfigError
from understudy.load.validation.validation_data import UNREADABLE, ValidationData
from understudy.policies.batch import from_present
from understudy.policies.common.task_modes import FLOW, MODES, POLICY, TRAINS
from understudy.train.optimizer_step import batch_to_device
from understudy.train.state import TrainState
from understudy.train.validation.open_loop import predict_actions

BATCH = 16
"""Chunks of a forward pass."""


class EpisodeActions:
    """Predicted actions of the episodes of a validation. Safe in threads, one episode at a time.

    Args:
        state: with the weights to evaluate.
        held: the validation frames.

    Raises:
        ConfigError: the run trained no policy to act.
    """

    def __init__(self, state: TrainState, held: ValidationData) -> None:
        self._mode = state.config.val_mode()
        if FLOW not in TRAINS[self._mode]:
            raise ConfigError(f"mode: the run trained no policy to act: it is {state.config.mode}")
        self._state, self._held, self._lock = state, held, threading.Lock()

    def episodes(self, source: int) -> np.ndarray:
        """Return the ids of the validation episodes of a source, int64, ascending."""
        return np.unique(self._held.episode[self._held.source == source])

    @torch.no_grad()
    def predict(self, source: int, episode: int, length: int) -> dict[str, Any]:
        """Predict the actions of an episode.

        Args:
            source: index of the source in `held`.
            episode: its id.
            length: frames of the episode.

        Returns:
            "chunk": actions of a prediction; "starts": frames of the predictions, ascending; "actions": float64
            [length, A] in the robot's units, NaN without a prediction; "mae": [A], mean absolute error; "names" of
            the A dimensions; "unreadable": number of frames that could not be read.

        Raises:
            DatasetError: a frame cannot be read.
        """
        held, state = self._held, self._state
        own = np.flatnonzero((held.source == source) & (held.episode == episode))
        chunk = state.eval_policy.config.chunk
        chosen = own[choose_starts(held.frame[own], chunk)]
        names = held.action_names(source)
        actions, recorded = np.full((length, len(names)), np.nan), np.full((length, len(names)), np.nan)
        mask = np.zeros(len(held), bool)
        mask[chosen] = True
        part = held.select(mask)
        starts: list[int] = []
        with self._lock:
            policy = state.eval_policy.eval()
            for low in range(0, len(part), BATCH):
                span = slice(low, min(low + BATCH, len(part)))
                batch = policy.preprocess(part.read(span))
                unreadable = batch.pop(UNREADABLE)
                if self._mode != POLICY:
                    batch[MODE] = torch.full((span.stop - span.start,), MODES.index(self._mode))
                here = from_present(batch_to_device(batch, state.mesh.device), policy.config)
                proposed = predict_actions(policy, here, part.identity(span), state.config.seed, self._mode)
                for row in range(span.stop - span.start):
                    if row in unreadable:
                        continue
                    first = int(part.frame[low + row])
                    last = min(first + chunk, length)
                    starts.append(first)
                    for target, values in ((actions, proposed), (recorded, here[ACTION])):
                        steps = values[row, : last - first, : len(names)].double().cpu().numpy()
                        target[first:last] = steps
                    recorded[first:last][here[f"{ACTION}_is_pad"][row, : last - first].cpu().numpy()] = np.nan
        known = ~np.isnan(actions + recorded).any(1) if len(names) else np.zeros(length, bool)
        mae = np.abs(actions - recorded)[known].mean(0) if known.any() else np.full(len(names), np.nan)
        return {
            "chunk": chunk,
            "starts": starts,
            "actions": actions,
            "mae": mae,
            "names": names,
            "unreadable": len(part) - len(starts),
        }


def choose_starts(frames: np.ndarray | Sequence[int], chunk: int) -> np.ndarray:
    """Return indexes of the first of `frames` (ascending) and of each next one that is `chunk` or more after it."""
    chosen: list[int] = []
    at = 0
    while at < len(frames):
        chosen.append(at)
        at = int(np.searchsorted(frames, frames[at] + chunk))
    return np.asarray(chosen, np.int64)
