"""A small sentencepiece model like PaliGemma's, trained on the fly: pad 0, eos 1, bos 2, digits one
by one.
"""

import io
from functools import cache
from pathlib import Path

import sentencepiece

WORDS = (
    "pick up the red block",
    "push the blue block",
    "Task: wait_here, State: -1 255 ;",
    "Subtask: Action: |",
    "grün Pick",
)


@cache
def model(vocab: int = 120) -> bytes:
    """A serialised model of at most `vocab` ids that distinguishes all letters of `WORDS`, digits
    and line ends.
    """
    out = io.BytesIO()
    texts = [*WORDS, " ".join("0123456789")] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=out,
        vocab_size=vocab,
        model_type="bpe",
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        split_digits=True,
        character_coverage=1.0,
        user_defined_symbols=["\n"],
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return out.getvalue()


def write_model(folder: Path, name: str = "tokenizer.model") -> Path:
    """Write the model and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(model())
    return folder / name
