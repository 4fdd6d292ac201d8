"""FAST action tokens: cosine transform, rounding and byte-pair encoding of action chunks (Pertsch
et al. 2025).

    chunk [T, D], normalized to about -1..1
      -> orthonormal DCT-II over time, times `scale`, rounded            integers [T, D]
      -> flattened step by step (frequency, then dimension),             one Unicode character each
         minus `min_token`
      -> byte-pair encoding                                               ids below `vocab_size`

Only the rounding loses anything: a coefficient is off by at most 0.5 / scale, unless it is outside
of the alphabet. There are two kinds of alphabet. `published` is that of the released tokenizers:
character number 0, 1, 2, ..., split as text is and encoded as bytes. `private` is ours: Unicode's
private plane 15, where no character is a space, a digit or unprintable. Both are a folder with
tokenizer.json and processor_config.json, read as data: no code of it is executed.

arXiv:2501.09747 has the method. The package `tokenizers` (extra `pi05`) is imported when a
tokenizer is read or fitted.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from understudy.policies.common.lerobot_processors import read_object
from understudy_base import ConfigError, optional_imports

TOKENIZER = "tokenizer.json"
CONFIG = "processor_config.json"
"""Files of a folder."""

Kind = Literal["published", "private"]

FIRST_CHARACTER: dict[str, int] = {"published": 0, "private": 0xF0000}
"""Unicode number of an alphabet's first character, by kind."""

LARGEST: dict[str, int] = {"published": 0xD7FF, "private": 0xFFFD}
"""Largest distance from the first character: up to the surrogates, up to the end of the plane."""


class Encoded(NamedTuple):
    """Tokens of a batch of chunks."""

    tokens: list[list[int]]
    """Ids of each chunk, without padding; their number differs."""
    is_clipped: np.ndarray
    """bool [B]: some coefficient is outside of the alphabet and was replaced by the nearest one."""


class Decoded(NamedTuple):
    """Chunks of a batch of tokens."""

    actions: np.ndarray
    """float32 [B, T, D], normalized; zeros where `is_valid` is False."""
    is_valid: np.ndarray
    """bool [B]: the tokens are those of a chunk of T x D coefficients."""


@dataclass(frozen=True)
class FastTokenizer:
    """FAST tokens of action chunks. Thread-safe."""

    tokenizer: Any = field(repr=False)
    """The byte-pair encoding, a `tokenizers.Tokenizer`."""
    kind: Kind
    scale: float
    """Steps per unit of a coefficient."""
    min_token: int
    """Smallest integer of the alphabet."""
    max_token: int
    """Largest integer of the alphabet."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return int(self.tokenizer.get_vocab_size())

    @classmethod
    def read(cls, folder: str | Path) -> "FastTokenizer":
        """Read a published tokenizer, or one of `save`.

        Raises:
            ConfigError: a file is missing or is not one of a FAST tokenizer; names the file and the
                remedy.
            MissingExtraError: `tokenizers` is not installed.
        """
        folder = Path(folder)
        for name in (TOKENIZER, CONFIG):
            if not (folder / name).is_file():
                raise ConfigError(
                    f"{folder} holds no FAST tokenizer: {name} is missing; name the folder of a "
                    "published one, or of `understudy fast fit`"
                )
        config = read_object(folder / CONFIG)
        kind = config.get("kind", "published")
        if kind not in FIRST_CHARACTER:
            raise ConfigError(
                f"{folder / CONFIG}: kind is {kind!r}; this version reads "
                f"{' and '.join(FIRST_CHARACTER)}"
            )
        scale = config.get("scale")
        low = config.get("min_token")
        if (
            isinstance(scale, bool)
            or not isinstance(scale, int | float)
            or not 0 < scale < float("inf")
        ):
            raise ConfigError(
                f"{folder / CONFIG}: scale is {scale!r}; it must be a positive number"
            )
        low = _whole(low, folder, "min_token")
        if kind == "private":
            high = _whole(config.get("max_token"), folder, "max_token")
        else:
            high = low + LARGEST[kind]
        if not low <= high <= low + LARGEST[kind]:
            raise ConfigError(
                f"{folder / CONFIG}: the integers {low} to {high} are no alphabet of kind {kind}"
            )
        with optional_imports():
            from tokenizers import Tokenizer
        try:
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as error:  # the package raises plain Exception
            raise ConfigError(
                f"{folder / TOKENIZER} cannot be read: {error}; restore the file"
            ) from error
        return cls(tokenizer, kind, float(scale), low, high)

    @classmethod
    def fit(
        cls, chunks: Iterable[np.ndarray], vocab_size: int = 1024, scale: float = 10.0
    ) -> "FastTokenizer":
        """Fit the `private` kind to action chunks; equal chunks in equal sequence give an equal
        tokenizer.

        Args:
            chunks: float [T, D] each, normalized.
            vocab_size: most ids, at least as many as there are integers between the smallest and
                the largest one.
            scale: steps per unit of a coefficient.

        Raises:
            ConfigError: no chunk, a value that is not finite, or more integers than `vocab_size`.
            MissingExtraError: `tokenizers` is not installed.
        """
        if not 0 < scale < float("inf"):
            raise ConfigError(f"scale is {scale}; it must be a positive number")
        integers = [quantise(np.asarray(chunk)[None], scale)[0] for chunk in chunks]
        if not integers:
            raise ConfigError("there is no chunk to fit FAST tokens to; give at least one")
        low = min(int(coefficients.min()) for coefficients in integers)
        high = max(int(coefficients.max()) for coefficients in integers)
        count = high - low + 1
        if count > min(vocab_size, LARGEST["private"] + 1):
            raise ConfigError(
                f"the coefficients have {count} integers, from {low} to {high}, and vocab_size is "
                f"{vocab_size}; give a larger one or a smaller scale, or look for outliers: FAST "
                "expects actions between about -1 and 1"
            )
        with optional_imports():
            from tokenizers import Tokenizer, decoders, models, trainers
        first = FIRST_CHARACTER["private"]
        tokenizer = Tokenizer(models.BPE())
        tokenizer.decoder = decoders.Fuse()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            show_progress=False,
            special_tokens=[],
            initial_alphabet=[chr(first + number) for number in range(count)],
            max_token_length=10000,
        )
        tokenizer.train_from_iterator(
            (_text(coefficients - low + first) for coefficients in integers), trainer
        )
        return cls(tokenizer, "private", float(scale), low, high)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and processor_config.json into `folder`, which is made."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "kind": self.kind,
            "scale": self.scale,
            "vocab_size": self.vocab_size,
            "min_token": self.min_token,
            "max_token": self.max_token,
        }
        (folder / TOKENIZER).write_text(self.tokenizer.to_str())
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    def encode(self, chunks: np.ndarray) -> Encoded:
        """Encode normalized chunks, float [B, T, D].

        Raises:
            ValueError: a value is not finite.
        """
        integers = quantise(chunks, self.scale)
        inside = np.clip(integers, self.min_token, self.max_token)
        places = inside - self.min_token + FIRST_CHARACTER[self.kind]
        # One by one: `encode_batch` would start threads next to the loader's.
        tokens = [
            list(self.tokenizer.encode(_text(row), add_special_tokens=False).ids) for row in places
        ]
        return Encoded(tokens, (inside != integers).reshape(len(integers), -1).any(axis=1))

    def decode(self, tokens: Sequence[Sequence[int]], steps: int, dim: int) -> Decoded:
        """Decode the ids of B chunks of `steps` x `dim` coefficients; marks ids that are no such
        chunk as not valid.
        """
        integers = np.zeros((len(tokens), steps, dim), np.int64)
        valid = np.zeros(len(tokens), bool)
        for row, ids in enumerate(tokens):
            characters = self._characters(ids)
            if characters is not None and len(characters) == steps * dim:
                integers[row] = characters.reshape(steps, dim) + self.min_token
                valid[row] = True
        coefficients = integers / self.scale
        return Decoded((cosines(steps).T @ coefficients).astype(np.float32), valid)

    def _characters(self, ids: Sequence[int]) -> np.ndarray | None:
        """Places in the alphabet, int64 [n]; None where the ids are no characters of it."""
        if any(not 0 <= token < self.vocab_size for token in ids):
            return None
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        places = np.array([ord(token) for token in text], np.int64) - FIRST_CHARACTER[self.kind]
        # The published kind decodes broken bytes to U+FFFD, which is above its largest character.
        is_character = (places >= 0) & (places <= self.max_token - self.min_token)
        return places if is_character.all() else None


@cache
def cosines(steps: int) -> np.ndarray:
    """Matrix of the orthonormal DCT-II, float64 [steps, steps]; its transpose is the inverse."""
    number = np.arange(steps)[:, None]
    place = np.arange(steps)
    matrix: np.ndarray = np.sqrt(2 / steps) * np.cos(np.pi * (2 * place + 1) * number / (2 * steps))
    matrix[0] /= np.sqrt(2)
    return matrix


def quantise(chunks: np.ndarray, scale: float) -> np.ndarray:
    """Return the rounded cosine coefficients of chunks, float [B, T, D], times `scale`: int64 [B,
    T, D].

    Raises:
        ValueError: the chunks have no three dimensions, no value, or one that is not finite or too
            large.
    """
    chunks = np.asarray(chunks, np.float64)
    if chunks.ndim != 3 or not chunks.size:
        raise ValueError(
            f"chunks have shape {chunks.shape}, expected [B, T, D] of at least one value each"
        )
    coefficients = np.around((cosines(chunks.shape[1]) @ chunks) * scale)
    if not (np.abs(coefficients) < 2.0**53).all():  # also where it is NaN
        row = int((~(np.abs(coefficients) < 2.0**53)).reshape(len(chunks), -1).any(axis=1).argmax())
        raise ValueError(
            f"the actions of chunk {row} are not finite or too large for FAST tokens: correct the "
            "data"
        )
    return coefficients.astype(np.int64)


def _text(places: np.ndarray) -> str:
    return "".join(map(chr, places.reshape(-1).tolist()))


def _whole(value: Any, folder: Path, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{folder / CONFIG}: {name} is {value!r}; it must be a whole number")
    return value
