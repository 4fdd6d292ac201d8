"""`understudy select`: saves a selection of a dataset as a view, or lists its views."""

import shlex
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from understudy_base import DatasetError, plural
from understudy_kit import Fraction, Positional, SelectionConfig, flag_of

if TYPE_CHECKING:
    from understudy_data import Catalog, EpisodeArrays

_LISTED = 20  # values of a list that are printed


@dataclass(frozen=True)
class SelectConfig(SelectionConfig):
    """Save a selection of a dataset's episodes and frames as a view, which has a name; without
    NAME, list the views.

    The dataset's address with `#NAME` is the view: in every command, in settings, and in
    `us.EpisodeDataset`. Each change is a new version, and `#NAME@2` is the second one. Files of the
    settings are copied into the dataset.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Folder of a LeRobot dataset, and the name of a view of it to save. If the dataset is itself a
    view, the new one is a selection of that.
    """
    val_fraction: Fraction | None = None
    """Share of its episodes for validation; the default is that of the run."""
    freeze: bool = False
    """Save the ids of the selected episodes in place of the condition, so that episodes of a later
    time are left out.
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        is_list = len(self.paths) == 1 and self == SelectConfig(paths=self.paths)
        problems = list(super().problems())
        if not is_list and len(self.paths) != 2:
            problems.append(
                "paths: give a dataset and the name of the view to save: understudy select PATH "
                "NAME"
            )
        return problems


def select(config: SelectConfig) -> None:
    """Save a view and print it, or print all views of the dataset."""
    from understudy_data import Catalog

    catalog = Catalog.open(config.paths[0])
    names = catalog.views.names()
    if len(config.paths) == 2:
        _warn_of_doubts(catalog)
    for name in config.paths[1:]:
        chosen = _chosen(config, catalog.views.SETTINGS)
        if catalog.view is not None:
            chosen = {**catalog.view.select, **catalog.view.combine(chosen)}
        data = _open(catalog, chosen)
        if config.freeze:
            chosen = {
                key: value
                for key, value in chosen.items()
                if key not in ("where", "exclude_episodes")
            }
            chosen["episodes"] = sorted(set(data.segments[:, 0].tolist()))
        names = [str(catalog.views.save(name, chosen, {"episodes": data.num_episodes}))]
    for name in names:
        try:
            view = catalog.with_view(f"#{name}").view
            assert view is not None
            data = _open(catalog, view.select)
        except DatasetError as error:
            print(f"#{name}: {error}")
            continue
        print(
            f"{view.describe(data.num_episodes, len(catalog.episodes))}; {len(data):,} frames; "
            f"{_flags(view.select)}"
        )
    if not names:
        print(f"{catalog.root}: no views")


def _warn_of_doubts(catalog: "Catalog") -> None:
    """Warn of files that contradict the metadata, of rows in a sample of the data files: a view has
    them, too.
    """
    from understudy_data import FileCheck

    files = FileCheck(catalog)
    bad = files.sample()
    more = f"; and {plural(len(bad) - 1, 'more problem')}" if len(bad) > 1 else ""
    advice = (
        f"a training refuses these episodes; `understudy check {catalog.root}` names all of them"
    )
    lines = [f"{bad[0].line}{more}; {advice}"] if bad else []
    for line in [*filter(None, [files.doubt()]), *lines]:
        warnings.warn(f"{catalog.root}: {line}", stacklevel=3)


def _flags(select: Mapping[str, Any]) -> str:
    """Return settings as flags; of a list its first values, and their number."""
    words = list[str]()
    for name, value in select.items():
        items = value if isinstance(value, tuple) else (value,)
        values = [shlex.quote(str(item)) for item in items]
        words += [flag_of(name), *values[:_LISTED]]
        if len(values) > _LISTED:
            words.append(f"... ({len(values):,} in all)")
    return " ".join(words) or "all frames"


def _chosen(config: SelectConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return those settings of these names that are not the default, and the use of a file that is
    given.
    """
    settings = {name: getattr(config, name) for name in names}
    chosen = {
        name: value for name, value in settings.items() if value != getattr(SelectConfig, name)
    }
    used = {"keep_ranges": "keep_rule", "frame_weights": "frame_weights_in"}
    return chosen | {use: getattr(config, use) for name, use in used.items() if name in chosen}


def _open(catalog: "Catalog", chosen: Mapping[str, Any]) -> "EpisodeArrays":
    """Return the selected frames. Raises DatasetError."""
    from understudy_data import EpisodeArrays

    options = {name: value for name, value in chosen.items() if not name.startswith("val_")}
    return EpisodeArrays(replace(catalog, view=None), keys=[], **options)
