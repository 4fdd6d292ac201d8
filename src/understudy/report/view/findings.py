"""Findings of `understudy check` by episode: from its JSON, or from a check of the dataset."""

import json
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from understudy.check.examine import check_dataset
from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError

MOST = 200
"""Findings of one episode, or of no episode, that are shown."""
_FIX = "give the output of `understudy check PATH --json`"


class Findings:
    """Findings of a dataset, if they are known.

    Most rules compare episodes, so a check is of the whole dataset: all metadata and rows, and no image.

    Args:
        catalog: the dataset.
        path: file with the JSON of `understudy check`; "" for none.

    Raises:
        DatasetError: the file cannot be read, holds no findings, or those of a dataset with other episodes.
    """

    def __init__(self, catalog: Catalog, path: str = "") -> None:
        self._catalog, self._lock = catalog, threading.Lock()
        self._by_episode: dict[int, list[dict[str, Any]]] | None = None
        self._general: list[dict[str, Any]] = []
        if path:
            self._take(_read(path, catalog))

    @property
    def known(self) -> bool:
        """Whether the dataset was checked."""
        return self._by_episode is not None

    def check(self) -> dict[str, Any]:
        """Check the dataset unless that is done; return {"episodes", "general"}: numbers of findings.

        Raises:
            DatasetError: the source gives no answer.
        """
        with self._lock:
            if self._by_episode is None:
                stored = Catalog.open(self._catalog.root, self._catalog.files.options)  # a run renames keys
                report = check_dataset(stored, "rows")
                self._take(report.to_json()["findings"])
            assert self._by_episode is not None
            return {"episodes": len(self._by_episode), "general": len(self._general)}

    def of(self, episode: int) -> dict[str, Any]:
        """Return {"known", "episode": findings about this episode, "general": those about no episode}."""
        own = (self._by_episode or {}).get(episode, [])
        return {"known": self.known, "episode": own[:MOST], "general": self._general[:MOST]}

    def _take(self, findings: Sequence[Mapping[str, Any]]) -> None:
        by_episode: dict[int, list[dict[str, Any]]] = defaultdict(list)
        general = []
        for finding in findings:
            place = finding.get("place") or {}
            short = {name: finding.get(name) or "" for name in ("rule", "severity", "message", "fix")}
            parts = [place.get("file"), place.get("camera"), place.get("column")]
            short["where"] = ", ".join(part for part in parts if part)
            short["where"] += f"[{place['dimension']}]" if place.get("dimension") else ""
            short["column"], short["dimension"] = place.get("column") or "", place.get("dimension") or ""
            for number, episode in enumerate(place.get("episodes") or ()):
                # The frame is that of the first episode.
                by_episode[int(episode)].append(short | {"frame": None if number else place.get("frame")})
            if not place.get("episodes"):
                general.append(short | {"frame": None})
        self._by_episode, self._general = by_episode, general


def _read(path: str, catalog: Catalog) -> list[Mapping[str, Any]]:
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", where=path, fix=_FIX) from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not valid JSON: {error}", where=path, fix=_FIX) from error
    findings = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(findings, list) or not all(_is_finding(one) for one in findings):
        raise DatasetError("holds no findings", where=path, fix=_FIX)
    size = content.get("episodes"), content.get("frames")
    if size != (catalog.num_episodes, catalog.num_frames):
        what = f"its dataset has {size[0]} episodes and {size[1]} frames, this one {catalog.num_episodes} and "
        raise DatasetError(what + str(catalog.num_frames), where=path, fix="check this dataset: understudy check PATH")
    return findings


def _is_finding(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("rule"), str):
        return False
    place = value.get("place")
    episodes = place.get("episodes", []) if isinstance(place, dict) else None
    frame = place.get("frame") if isinstance(place, dict) else None
    texts = (value.get(name, "") for name in ("severity", "message", "fix"))
    return (
        isinstance(episodes, list)
        and all(type(episode) is int for episode in episodes)
        and (frame is None or type(frame) is int)
        and all(isinstance(text, str) for text in texts)
    )
