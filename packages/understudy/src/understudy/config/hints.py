"""Hints of the commands that have a run's settings: names of other trainers, and misplaced
words.
"""

from collections.abc import Collection
from pathlib import Path

from understudy.config.other_trainers import equivalent, read_hints
from understudy_kit import SUFFIXES


class TrainerNames:
    """Names of other trainers; it is what `config/hooks.py` calls `OtherNames`."""

    def names(self) -> Collection[str]:
        """Return the names that are translated, dotted and spelled as in flags."""
        return read_hints().keys()

    def equivalent(self, name: str) -> str | None:
        """Return what takes the place of a name here; None for an unknown one."""
        return equivalent(name)

    def misplaced(self, word: str) -> str | None:
        """Return the message about a word that no setting takes; None: there is no better one."""
        name, override, _ = word.partition("=")
        path = Path(word)
        if override and (ours := equivalent(name)):
            return f"{name}: unknown setting; here it is {ours}"
        if (path / "meta").is_dir():
            return f"{word}: this is a dataset; did you mean --data.root {word}?"
        if (path / "checkpoints").is_dir():
            return f"{word}: this is a run; did you mean understudy resume {word}?"
        suffixes = ", ".join(SUFFIXES)
        if path.suffix in SUFFIXES:
            return f"{word}: a settings file comes before the flags, and there is one"
        if path.suffix:
            return f"{word}: settings files end in {suffixes}"
        if "/" in word or path.exists():
            return (
                f"{word}: not a settings file ({suffixes}); a dataset is given as --data.root "
                f"{word}"
            )
        return None


TRAINER_NAMES = TrainerNames()
