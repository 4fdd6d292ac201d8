"""A run as a source of `understudy view`: its validation episodes, with the actions that its policy
predicts.

The entry point `run` of the group `understudy.view_sources` (`cli/view.py`). Nothing is imported
for a folder that is no run.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from understudy_base import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from understudy_base import Record
    from understudy_data import Catalog

    Viewed = tuple[str, list[tuple[str, Catalog, np.ndarray]], Callable[[int, int, int], Record]]


def open_run(
    path: str, checkpoint: int | Literal["latest", "best"], episodes: Sequence[int]
) -> "AbstractContextManager[Viewed] | None":
    """Return the source of a run directory; None for another folder.

    Args:
        path: the folder.
        checkpoint: step, "latest" or "best".
        episodes: ids to show, of those that were validated; all without any.
    """
    if not (Path(path) / "config.yaml").is_file():
        return None
    return _open(Path(path), checkpoint, episodes)


@contextmanager
def _open(root: Path, checkpoint: int | str, episodes: Sequence[int]) -> "Iterator[Viewed]":
    """Open the checkpoint.

    Yields:
        A title, the (name, catalog, table rows int64 (n,) of the episodes) of each source, and
        `EpisodeActions.predict`.

    Raises:
        ConfigError: no such checkpoint, or none of `episodes` was validated.
    """
    import numpy as np

    from understudy.train.run import open_checkpoint
    from understudy.train.validation.open_loop import EpisodeActions

    with open_checkpoint(root, checkpoint) as (state, validation):
        actions = EpisodeActions(state, validation)
        sources = []
        for number, (name, dataset) in enumerate(zip(validation.names, validation.datasets)):
            ids = actions.episodes(number)
            if episodes:
                ids = np.intersect1d(ids, np.asarray(episodes, np.int64))
            sources.append((name, dataset.catalog, dataset.catalog.episodes.rows_of(ids)))
        if not any(len(rows) for _, _, rows in sources):
            examples = ", ".join(map(str, actions.episodes(0)[:8].tolist()))
            problem = (
                f"none is a validation episode of the run; {validation.names[0]} has {examples}, …"
            )
            raise ConfigError(f"episodes: {problem}")
        yield f"{root.name}, step {state.step}", sources, actions.predict
