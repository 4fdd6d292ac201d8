"""Results of `understudy rollout` in the folder of a run."""

import json
from pathlib import Path
from typing import Any


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Read the results of `understudy rollout`, those with swapped text last; other files are
    ignored.
    """
    results = []
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    for path in paths:
        # rollouts during training, which are also in metrics.jsonl
        if path.name.startswith("step-"):
            continue
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            result["success"]["episodes"], result["swap_text"], result["world"], result["tasks"]
        except (ValueError, KeyError, TypeError, OSError):
            continue
        results.append(result)
    return sorted(results, key=lambda result: bool(result["swap_text"]))
