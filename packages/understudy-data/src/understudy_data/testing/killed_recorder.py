"""Datasets of a recorder that was killed: files that no episode names, and files that are cut."""

import json
from pathlib import Path

from understudy_data.testing.datasets import Spec, write_dataset


def v2(root: Path, keep: set[int] = frozenset(range(6))) -> Path:  # type: ignore[assignment]
    """Six episodes of v2.1, of which meta/ lists `keep`."""
    write_dataset(root, Spec(version="v2.1", lengths=(6,) * 6, chunks_size=1000, foreign=False))
    path = root / "meta/episodes.jsonl"
    lines = [
        line for line in path.read_text().splitlines() if json.loads(line)["episode_index"] in keep
    ]
    path.write_text("\n".join(lines) + "\n")
    return root


def gap(root: Path) -> None:
    v2(root, keep={0, 1, 4, 5})


def cut(root: Path) -> None:
    v2(root, keep={0, 1, 2, 3, 4})
    path = root / "data/chunk-000/episode_000005.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def packed_cut(root: Path) -> None:
    write_dataset(root, Spec(lengths=(6,) * 4, foreign=False, files_per_chunk=9))
    first = root / "data/chunk-000/file-000.parquet"
    (root / "data/chunk-000/file-007.parquet").write_bytes(first.read_bytes()[:-9])
