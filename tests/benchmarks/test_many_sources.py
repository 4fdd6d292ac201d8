"""`lab/benchmarks/many_sources.py` on few sources: first start, later start and resumption of real
runs.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import many_sources
import understudy as us

SCRIPT = Path(__file__).parents[2] / "lab/benchmarks/many_sources.py"


@pytest.mark.parametrize("with_videos", [False, True], ids=["rows", "videos"])
def test_the_sources_are_read_under_their_own_keys(with_videos: bool, tmp_path: Path) -> None:
    many_sources.write(tmp_path, 7, with_videos)
    entries = many_sources.settings(tmp_path, 7, with_videos)["data"]["sources"]
    assert len({(entry["action"], entry["state"]) for entry in entries}) == len(
        many_sources.SPELLINGS
    )
    seen = []
    for entry in entries:
        sample = us.EpisodeDataset(entry["root"]).sample(2, 12)
        assert sample[entry["state"]].shape == (many_sources.WIDTH,)
        seen.append(sample[entry["action"]].numpy().tobytes())
        for camera in entry.get("cameras", {}).values():
            assert sample[camera].shape == (3, many_sources.SIDE, many_sources.SIDE)
    assert len(set(seen)) == 7


@pytest.mark.long
def test_a_small_round_has_all_figures(tmp_path: Path) -> None:
    words = ["--sources", "8", "--rounds", "1", "--steps", "3", "--folder", str(tmp_path), "--json"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["kind"], row["sources"]) for row in rows] == [("rows", 8), ("videos", 8)]
    for row in rows:
        assert (
            min(row[name] for name in ("first_s", "later_s", "resume_s", "peak_mb", "steps_s")) > 0
        )
        assert row["first_extra_s"] < 60
