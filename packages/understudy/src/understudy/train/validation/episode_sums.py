"""Loss sums of each validation episode, in a file of the run: `validation/step-00001000.npz`.

metrics.jsonl has means and standard errors. A paired difference of two runs needs the sums of each
episode, and the ranking of episodes does, too.
"""

import hashlib
import io
import json
import logging
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy_base import Record, write_bytes

if TYPE_CHECKING:
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.validation.metrics import TermSums
    from understudy_data import ValidationData

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeSums:
    """Sums over the evaluated samples of each of E episodes."""

    names: tuple[str, ...]
    """Names of the sources."""
    source: np.ndarray
    """int64 (E,): index of the source of each episode."""
    episode: np.ndarray
    """int64 (E,)"""
    samples: np.ndarray
    """int64 (E,): number of evaluated samples."""
    sums: dict[str, np.ndarray]
    """Loss term -> float64 (E,)."""
    counts: dict[str, np.ndarray]
    """Loss term -> float64 (E,): number of elements."""
    weights: dict[str, float]
    """Weight of each term in the loss."""
    digest: str
    """Digest of sources, episodes, frames and weights of all samples: equal where two validations
    have the same.
    """

    @classmethod
    def from_samples(
        cls, sums: Mapping[str, "TermSums"], weights: Mapping[str, float], held: "ValidationData"
    ) -> "EpisodeSums":
        """Add up the sums of samples, as `group_losses` gets them, times their frame weights."""
        pairs = np.stack([held.source, held.episode])
        episodes, index = np.unique(pairs, axis=1, return_inverse=True)
        index = index.reshape(-1)

        weighted = {term: sums[term].weighted(held.weight) for term in weights}

        def total(values: np.ndarray) -> np.ndarray:
            return np.bincount(index, weights=values, minlength=episodes.shape[1])

        sample_digest = hashlib.sha256(json.dumps(held.names).encode())
        sample_digest.update(
            np.stack([held.source, held.episode, held.frame]).astype("<i8").tobytes()
        )
        if held.weight is not None:
            sample_digest.update(held.weight.astype("<f8").tobytes())
        return cls(
            names=held.names,
            source=episodes[0],
            episode=episodes[1],
            samples=np.bincount(index, minlength=episodes.shape[1]),
            sums={term: total(weighted[term].sums) for term in weights},
            counts={term: total(weighted[term].counts) for term in weights},
            weights=dict(weights),
            digest=sample_digest.hexdigest()[:32],
        )

    def losses(self) -> np.ndarray:
        """Loss of each episode, float64 (E,): weighted sum of the terms' means; NaN without an
        element.
        """
        total = np.zeros(len(self.episode))
        has_elements = np.zeros(len(self.episode), bool)
        for term, weight in self.weights.items():
            counted = self.counts[term] > 0
            total[counted] += weight * self.sums[term][counted] / self.counts[term][counted]
            has_elements |= counted
        return np.where(has_elements, total, np.nan)

    def is_of(self, loss: float | None, source: str | None = None) -> bool:
        """Return whether these sums have the logged `loss` (None: not finite), that of all samples
        or of a source.
        """
        mean = self.loss(source)
        return not math.isfinite(mean) if loss is None else math.isclose(mean, loss, rel_tol=1e-9)

    def loss(self, source: str | None = None) -> float:
        """Return the loss of all samples, or of those of a source; NaN without an element."""
        rows = np.array(
            [source is None or self.names[number] == source for number in self.source], bool
        )
        losses = []
        for term, weight in self.weights.items():
            if total := math.fsum(self.counts[term][rows]):
                losses.append(weight * (math.fsum(self.sums[term][rows]) / total))
        return math.fsum(losses) if losses else math.nan

    def largest(self, count: int) -> np.ndarray:
        """Return the indexes of the `count` episodes with the largest losses, int64, largest first.

        A loss that is not finite is the largest. Episodes without an element are left out.
        """
        losses = self.losses()
        has_elements = np.zeros(len(losses), bool)
        for counts in self.counts.values():
            has_elements |= counts > 0
        ranked = np.where(np.isfinite(losses), losses, np.inf)
        order = np.lexsort((self.episode, self.source, -ranked))
        return order[has_elements[order]][:count]

    def write(self, path: Path) -> None:
        """Write a file, and its folder. A failure is only logged: the checkpoint of this step is
        still to be saved.
        """
        about = {"names": self.names, "weights": self.weights, "digest": self.digest}
        arrays = {"source": self.source, "episode": self.episode, "samples": self.samples}
        for number, term in enumerate(self.weights):
            arrays |= {f"sums-{number}": self.sums[term], f"counts-{number}": self.counts[term]}
        try:
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, pack(about, arrays))
        except OSError as error:
            logger.warning("%s: losses of episodes cannot be written: %s", path, error)

    @classmethod
    def read(cls, path: Path) -> "EpisodeSums | None":
        """Read a file; None where it is absent or damaged."""
        try:
            about, arrays = unpack(path.read_bytes())
            terms = list(about["weights"])
            return cls(
                names=tuple(about["names"]),
                source=arrays["source"],
                episode=arrays["episode"],
                samples=arrays["samples"],
                sums={term: arrays[f"sums-{number}"] for number, term in enumerate(terms)},
                counts={term: arrays[f"counts-{number}"] for number, term in enumerate(terms)},
                weights=about["weights"],
                digest=about["digest"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def read_validated(run: "RunDir", val: Sequence[Record]) -> tuple[int, EpisodeSums] | None:
    """Return the step and the sums of the latest validation that kept them; None without one.

    A file of another validation of the same step, before the run was resumed with other settings,
    does not count.

    Args:
        run: the run.
        val: its validation records, oldest first.
    """
    for record in reversed(val):
        sums = EpisodeSums.read(run.episode_losses(record["step"]))
        if sums is not None and sums.is_of(record["loss"]):
            return record["step"], sums
    return None


def pack(about: Record, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Pack JSON and arrays into the bytes of a compressed .npz file."""
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(about, ensure_ascii=False).encode(), np.uint8)
    # no array is named allow_pickle
    np.savez_compressed(buffer, about=text, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Unpack the bytes of `pack`. Raises ValueError or KeyError where they are damaged."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"damaged: {error}") from error
    return json.loads(arrays.pop("about").tobytes()), arrays
