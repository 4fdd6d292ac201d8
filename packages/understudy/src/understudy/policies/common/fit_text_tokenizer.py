r"""A sentencepiece model fitted to the texts of a dataset, with the conventions of PaliGemma's
tokenizer.

    0 pad, 1 eos, 2 bos, 3 unknown, 4 "\n", then the 256 bytes, then byte-pair encoding of the texts

As in PaliGemma, digits are separate, spaces are kept, and no space is put in front. Characters that
the texts lack are encoded as bytes (byte fallback), so any instruction can be encoded and decoded.
The package `sentencepiece` (extra `pi05`) is imported when a model is fitted.
"""

import io
from collections.abc import Iterable

from understudy_base import ConfigError, optional_imports

LEAST_IDS = 4 + 1 + 256
"""Ids that every model has: control tokens, the line end and the bytes."""


def fit_text_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """Fit a sentencepiece model; equal sets of texts give equal bytes with the same release of
    sentencepiece.

    Args:
        texts: any number, in any order; repetitions count once.
        vocab_size: most ids, at least `LEAST_IDS` and one for each character of the texts.

    Returns:
        The content of a `tokenizer.model`. Texts with few distinct parts give fewer ids.

    Raises:
        ConfigError: there is no text, or `vocab_size` is too small for the characters of the texts.
        MissingExtraError: `sentencepiece` is not installed.
    """
    distinct = sorted({text for text in texts if text.strip()})
    if not distinct:
        raise ConfigError(
            "there is no text to fit a tokenizer to; the data needs instructions (tasks) or "
            "responses"
        )
    needed = LEAST_IDS + len(set("".join(distinct)) - {"\n"})
    if vocab_size < needed:
        raise ConfigError(
            f"vocab_size is {vocab_size}, and the texts need {needed}: {LEAST_IDS} fixed ids, and "
            "one for each character; give more"
        )
    with optional_imports():
        from sentencepiece import SentencePieceTrainer
    out = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(distinct),
        model_writer=out,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        user_defined_symbols=["\n"],
        byte_fallback=True,
        split_digits=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        max_sentence_length=2**24,
        num_threads=1,
        minloglevel=2,
    )
    return out.getvalue()
