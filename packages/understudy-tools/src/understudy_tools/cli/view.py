"""`understudy view PATH`: look through the episodes of a dataset or a run in a browser."""

import atexit
import os
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy_base import (
    PIP_LINES,
    ConfigError,
    DatasetError,
    MissingExtraError,
    Progress,
    plural,
    require,
)
from understudy_kit import Ge, Ids, Interval, Positional, interrupted_by_signals

if TYPE_CHECKING:
    from understudy_tools.report.view.viewer import Viewer


@dataclass(frozen=True)
class ViewConfig:
    """Show episodes in a browser: images of all cameras beside curves, tasks, keep-ranges and
    findings.

    Of a run, its validation episodes with predicted actions.
    """

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset, or a run directory: then the run's validation episodes,
    with the actions that its policy predicts beside the recorded ones.
    """
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Of a run: step of the checkpoint, `latest`, or `best`: the best by the run's `keep_best`."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 0
    """Port of the page on 127.0.0.1; 0 takes a free one."""
    browser: bool = True
    """Open the page in a browser."""
    keep_ranges: str = ""
    """JSON file of keep-ranges to mark."""
    findings: str = ""
    """JSON of `understudy check PATH --json` to show; without it, the page has a button for a
    check.
    """
    episodes: Ids = ()
    """Ids of the episodes to list, or to export; the default is all."""
    pairing: Literal["", "files", "columns"] = ""
    """Side that decides where names (places) of data files and their columns name different
    episodes: to look which one is right.
    """
    export: str = ""
    """New or empty folder to write instead of a server: a page that opens from a file, with the
    media of `--episodes` beside it.
    """

    rerun: str = ""
    """New .rrd file to write instead, a recording of `--episodes` for rerun's viewer (extra
    `rerun`).
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = []
        if not self.path:
            errors.append(
                "path: required, the folder or URL of a dataset, or a run: understudy view PATH"
            )
        if self.export and not self.episodes:
            errors.append("export: name the episodes to write, as in --episodes 0 3 7")
        if self.rerun and not self.episodes:
            errors.append("rerun: name the episodes to write, as in --episodes 0 3 7")
        if self.rerun and (self.export or self.keep_ranges or self.findings):
            errors.append(
                "rerun: a recording has images, curves and texts alone; give --rerun without "
                "--export, --keep-ranges and --findings"
            )
        return errors


GROUP = "understudy.view_sources"
"""Entry points of other sources than datasets: functions (path, checkpoint, episodes) that return
None for a folder of another kind, or a context of (title, [(name, catalog, table rows)] of each
dataset, function as `Viewer.predict`).
"""


def view(config: ViewConfig) -> None:
    """Serve the page until Ctrl-C or SIGTERM, or export it."""
    from understudy_base import EntryPointError, find_entry_points
    from understudy_data import Catalog
    from understudy_tools.report.view.viewer import Source, Viewer, check_folder

    if config.export:
        check_folder(Path(config.export))
    if config.rerun:
        _record(config)
        return
    with suppress(KeyboardInterrupt), interrupted_by_signals():
        points = {} if (Path(config.path) / Catalog.INFO).is_file() else find_entry_points(GROUP)
        broken: EntryPointError | MissingExtraError | None = None
        for point in points.values():
            try:
                open_source = point.load()
            # the folder may be one of another source
            except (EntryPointError, MissingExtraError) as error:
                broken = broken or error
                continue
            opened = open_source(config.path, config.checkpoint, config.episodes)
            if opened is not None:
                if config.keep_ranges or config.findings:
                    raise ConfigError(
                        "keep_ranges, findings: these are for a dataset, not for a run; view the "
                        "dataset"
                    )
                with opened as (title, sources, predict):
                    _show(Viewer([Source(*source) for source in sources], title, predict), config)
                return
        is_run = (Path(config.path) / "order.json").is_file()
        if broken and (is_run or config.checkpoint != "latest"):
            raise broken
        if is_run:
            raise ConfigError(
                f"path: {config.path} is a run, and no installed package shows runs: "
                f"{PIP_LINES['understudy']}"
            )
        if config.checkpoint != "latest":
            raise ConfigError(f"checkpoint: {config.path} is no run; it is a setting of runs")
        try:
            viewer = _dataset_viewer(config)
        except DatasetError as error:
            if broken and Path(config.path).is_dir():
                raise broken from error
            raise
        _show(viewer, config)


def _record(config: ViewConfig) -> None:
    """Write a recording of rerun."""
    import numpy as np

    from understudy_data import open_episodes
    from understudy_tools.report.view.rerun_log import check_recording, write_recording

    require("rerun")
    path = Path(config.rerun)
    check_recording(path)
    catalog = open_episodes(config.path, config.pairing or None)
    rows = np.sort(catalog.episodes.rows_of(config.episodes))
    with Progress(int(catalog.episodes.lengths[rows].sum()), "rerun", "frame") as progress:
        write_recording(catalog, rows.tolist(), path, progress.update)
    print(f"{plural(len(rows), 'episode')}, {path.stat().st_size / 1e6:.1f} MB: rerun {path}")


def _dataset_viewer(config: ViewConfig) -> "Viewer":
    import numpy as np

    from understudy_data import open_episodes
    from understudy_tools.report.view.viewer import Source, Viewer

    catalog = open_episodes(config.path, config.pairing or None)
    rows = np.sort(catalog.episodes.rows_of(config.episodes)) if config.episodes else None
    return Viewer(
        [Source(catalog.name, catalog, rows, config.keep_ranges or None, config.findings)],
        catalog.name,
    )


def _show(viewer: "Viewer", config: ViewConfig) -> None:
    if config.export:
        _export(viewer, Path(config.export))
    else:
        _serve(viewer, config)


def _export(viewer: "Viewer", folder: Path) -> None:
    from understudy_tools.report.view.viewer import export_episodes

    episodes = viewer.list.all()
    with Progress(len(episodes), "export", "episode") as progress:
        export_episodes(viewer, episodes, folder, progress.update)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{plural(len(episodes), 'episode')}, {size / 1e6:.1f} MB: {folder / 'index.html'}")


def _serve(viewer: "Viewer", config: ViewConfig) -> None:
    from understudy_tools.report.view.server import ViewServer

    with ViewServer(viewer, config.port) as server:
        print(f"{plural(len(viewer.list), 'episode')} at {server.url} until Ctrl-C", flush=True)
        if config.browser:
            _open_browser(server.url)
        server.serve_forever()


def _open_browser(url: str) -> None:
    """Open the page where there is a screen; elsewhere, the browser would be one of text in this
    terminal.
    """
    import webbrowser

    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        # The command line of a browser is readable by all users of the machine, and the address is
        # a secret.
        handle, name = tempfile.mkstemp(prefix="understudy-view-", suffix=".html")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">')
        atexit.register(Path(name).unlink, missing_ok=True)
        threading.Thread(target=webbrowser.open, args=(Path(name).as_uri(),), daemon=True).start()
