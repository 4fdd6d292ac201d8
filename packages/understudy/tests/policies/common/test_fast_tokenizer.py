"""FAST action tokens: the transform against scipy, both kinds against an independent formulation,
and their errors.
"""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import dct, idct

from understudy.policies.common.fast_tokenizer import (
    CONFIG,
    TOKENIZER,
    FastTokenizer,
    cosines,
    quantise,
)
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra pi05")

SCALE = 10.0
STEPS = 12
DIM = 3


def smooth(count: int, seed: int = 0) -> np.ndarray:
    """Smooth chunks [count, STEPS, DIM] between -1 and 1, as motions are."""
    random = np.random.default_rng(seed)
    time = np.linspace(0, 1, STEPS)[:, None]
    phase = random.uniform(0, 6, (count, 1, DIM))
    rate = random.uniform(0, 2, (count, 1, DIM))
    return np.sin(phase + rate * time) * random.uniform(0, 1, (count, 1, DIM))


@pytest.fixture(scope="module")
def own() -> FastTokenizer:
    return FastTokenizer.fit(smooth(300), vocab_size=200, scale=SCALE)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the published form: byte-level pieces over the characters number 0, 1, 2, ..."""
    folder = tmp_path_factory.mktemp("published")
    integers = np.around(dct(smooth(300), axis=1, norm="ortho") * SCALE).astype(int)
    low = int(integers.min())
    high = int(integers.max())
    bpe = tokenizers.ByteLevelBPETokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=[
            *tokenizers.pre_tokenizers.ByteLevel.alphabet(),
            *map(chr, range(high - low + 1)),
        ],
        max_token_length=10000,
    )
    bpe._tokenizer.train_from_iterator(
        ("".join(map(chr, each.ravel() - low)) for each in integers), trainer
    )
    (folder / TOKENIZER).write_text(bpe._tokenizer.to_str())
    config = {
        "processor_class": "UniversalActionProcessor",
        "scale": SCALE,
        "vocab_size": 600,
        "min_token": low,
    }
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


# -- the transform ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_cosines_are_scipys(steps: int) -> None:
    x = np.random.default_rng(steps).normal(size=(steps, 4))
    np.testing.assert_allclose(cosines(steps) @ x, dct(x, axis=0, norm="ortho"), atol=1e-13)
    np.testing.assert_allclose(cosines(steps).T @ x, idct(x, axis=0, norm="ortho"), atol=1e-13)


def test_quantise_golden() -> None:
    """By hand: a constant c has the only coefficient c * sqrt(T); a ramp -1, 1 the second one
    -sqrt(2).
    """
    chunk = np.array([[[0.5, -1.0], [0.5, 1.0]]])
    assert quantise(chunk, 10.0).tolist() == [[[7, 0], [0, -14]]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_quantise_refuses_what_is_not_finite(bad: float) -> None:
    chunks = smooth(3)
    chunks[1, 2, 0] = bad
    with refused("chunk", 1, kind=ValueError):
        quantise(chunks, 10.0)


# -- both kinds ------------------------------------------------------------------------------------


def test_published_tokens_are_those_of_the_released_formula(published: Path) -> None:
    chunks = smooth(20, seed=5)
    config = json.loads((published / CONFIG).read_text())
    bpe = tokenizers.Tokenizer.from_file(str(published / TOKENIZER))
    expected = []
    for chunk in chunks:
        integers = np.around(dct(chunk, axis=0, norm="ortho") * config["scale"])
        shifted = np.maximum(integers.flatten() - config["min_token"], 0).astype(int)
        expected.append(bpe.encode("".join(map(chr, shifted))).ids)
    found = FastTokenizer.read(published).encode(chunks)
    assert found.tokens == expected
    assert not found.is_clipped.any()


@pytest.mark.parametrize("kind", ["own", "published"])
def test_round_trip_is_off_by_the_rounding_alone(kind: str, request: pytest.FixtureRequest) -> None:
    fast = request.getfixturevalue(kind)
    fast = FastTokenizer.read(fast) if isinstance(fast, Path) else fast
    chunks = smooth(200, seed=9)
    encoded = fast.encode(chunks)
    decoded = fast.decode(encoded.tokens, STEPS, DIM)
    assert decoded.is_valid.all()
    assert decoded.actions.dtype == np.float32
    off = dct(decoded.actions.astype(np.float64) - chunks, axis=1, norm="ortho")
    assert np.abs(off[~encoded.is_clipped]).max() <= 0.5 / SCALE + 1e-6
    assert np.abs(off).max() > 0.4 / SCALE  # it does round


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.floats(0.0, 3.0),
    steps=st.integers(1, 20),
    dim=st.integers(1, 5),
)
def test_own_kind_round_trips_any_chunk(
    own: FastTokenizer, seed: int, size: float, steps: int, dim: int
) -> None:
    """Any shape and size: the integers come back, clipped ones at the alphabet's end and marked."""
    chunk = np.random.default_rng(seed).normal(size=(1, steps, dim)) * size
    integers = quantise(chunk, own.scale)
    inside = np.clip(integers, own.min_token, own.max_token)
    encoded = own.encode(chunk)
    assert bool(encoded.is_clipped[0]) == bool((inside != integers).any())
    decoded = own.decode(encoded.tokens, steps, dim)
    assert decoded.is_valid.all()
    np.testing.assert_allclose(
        decoded.actions, idct(inside / own.scale, axis=1, norm="ortho"), atol=1e-5
    )


def test_published_kind_keeps_spaces_digits_and_wide_characters(published: Path) -> None:
    """Integers whose characters are control codes, spaces, digits, letters, and two or three bytes
    long.
    """
    fast = FastTokenizer.read(published)
    wanted = (
        np.array([0, 9, 10, 32, 33, 48, 65, 127, 128, 255, 256, 0x7FF, 0x800, 0x3000, 0xD7FF])
        + fast.min_token
    )
    chunk = (cosines(len(wanted)).T @ (wanted / fast.scale)[:, None])[None]
    encoded = fast.encode(chunk)
    assert not encoded.is_clipped.any()
    decoded = fast.decode(encoded.tokens, len(wanted), 1)
    assert decoded.is_valid.all()
    np.testing.assert_array_equal(quantise(decoded.actions, fast.scale)[0, :, 0], wanted)


def test_published_kind_clips_below_its_smallest_and_at_the_surrogates(published: Path) -> None:
    fast = FastTokenizer.read(published)
    chunks = np.stack([np.full((4, 1), 0.0), np.full((4, 1), -1e3), np.full((4, 1), 1e6)])
    encoded = fast.encode(chunks)
    assert encoded.is_clipped.tolist() == [False, True, True]
    decoded = fast.decode(encoded.tokens, 4, 1)
    assert decoded.is_valid.all()
    assert quantise(decoded.actions, fast.scale)[:, 0, 0].tolist() == [
        0,
        fast.min_token,
        fast.max_token,
    ]


# -- decoding of anything --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["own", "published"])
def test_decode_marks_tokens_of_no_chunk(kind: str, request: pytest.FixtureRequest) -> None:
    fast = request.getfixturevalue(kind)
    fast = FastTokenizer.read(fast) if isinstance(fast, Path) else fast
    good = fast.encode(smooth(1)).tokens[0]
    wrong = [
        [],
        good[:-1],
        [*good, good[0]],
        [*good[:-1], fast.vocab_size],
        [-1, *good[1:]],
        [10**9],
    ]
    decoded = fast.decode([good, *wrong], STEPS, DIM)
    assert decoded.is_valid.tolist() == [True] + [False] * len(wrong)
    assert not decoded.actions[1:].any()
    assert not fast.decode([good], STEPS, DIM + 1).is_valid.any()


@given(ids=st.lists(st.integers(-5, 700), max_size=60))
def test_decode_never_raises(own: FastTokenizer, published: Path, ids: list[int]) -> None:
    for fast in (own, FastTokenizer.read(published)):
        decoded = fast.decode([ids], STEPS, DIM)
        assert decoded.actions.shape == (1, STEPS, DIM)
        assert np.isfinite(decoded.actions).all()


# -- fitting and files -----------------------------------------------------------------------------


def test_fit_shortens_and_is_reproducible(own: FastTokenizer) -> None:
    again = FastTokenizer.fit(list(smooth(300)), vocab_size=200, scale=SCALE)
    assert again.tokenizer.to_str() == own.tokenizer.to_str()
    assert own.vocab_size <= 200
    lengths = [len(each) for each in own.encode(smooth(100, seed=3)).tokens]
    assert np.mean(lengths) < STEPS * DIM / 2


def test_fit_gives_no_character_another_meaning(own: FastTokenizer) -> None:
    text = json.loads(own.tokenizer.to_str())
    pieces = [ord(each) for piece in text["model"]["vocab"] for each in piece]
    assert min(pieces) >= 0xF0000
    assert max(pieces) <= 0xFFFFD
    assert text["pre_tokenizer"] is None
    assert text["normalizer"] is None


def test_save_and_read(own: FastTokenizer, tmp_path: Path) -> None:
    own.save(tmp_path / "mine")
    read = FastTokenizer.read(tmp_path / "mine")
    chunks = smooth(10, seed=1)
    assert read.encode(chunks).tokens == own.encode(chunks).tokens
    assert (read.kind, read.scale, read.min_token, read.max_token) == (
        "private",
        SCALE,
        own.min_token,
        own.max_token,
    )


def test_fit_refuses_outliers_and_nothing() -> None:
    with refused("vocab_size", 200, kind=ConfigError):
        FastTokenizer.fit([*smooth(3), np.full((STEPS, DIM), 1e3)], vocab_size=200)
    with pytest.raises(ConfigError):
        FastTokenizer.fit([])


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"scale": None},
        {"scale": 0},
        {"scale": True},
        {"min_token": 1.5},
        {"max_token": None},
        {"max_token": -(10**6)},
        {"max_token": 10**6},
    ],
)
def test_read_refuses_another_content(
    own: FastTokenizer, tmp_path: Path, change: dict[str, Any]
) -> None:
    own.save(tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text()) | change
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=CONFIG):
        FastTokenizer.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"), [(CONFIG, "no"), (CONFIG, "[]"), (TOKENIZER, "{}"), (TOKENIZER, None)]
)
def test_read_refuses_damaged_files(
    own: FastTokenizer, tmp_path: Path, name: str, content: str | None
) -> None:
    own.save(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=name):
        FastTokenizer.read(tmp_path)


def test_read_executes_no_code_of_the_folder(published: Path, tmp_path: Path) -> None:
    for name in (TOKENIZER, CONFIG):
        (tmp_path / name).write_text((published / name).read_text())
    (tmp_path / "processing_action_tokenizer.py").write_text("raise SystemExit('executed')\n")
    assert FastTokenizer.read(tmp_path).kind == "published"


def test_encode_from_several_threads(own: FastTokenizer) -> None:
    chunks = smooth(50, seed=4)
    expected = own.encode(chunks).tokens
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(own.encode(chunks).tokens)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
