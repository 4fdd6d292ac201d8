"""Who passes `check_policy`: our policies, LeRobot's through our adapters, and LeRobot's own.

    python lab/exams/policies_proofs.py --out lab/results/tables/check_policy.json

All are tiny and have fresh weights, so nothing is downloaded. Without LeRobot (extra `lerobot`) its
rows say so. The exit code is 1 where a policy of ours fails.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import understudy as us
from understudy.policies.registry import policy_type
from understudy_base import summarize

OURS = ("flow", "pi05", "pi0", "world_action", "value", "value_pi05")
PACKAGES = ("understudy", "understudy-zoo", "torch", "lerobot", "transformers", "diffusers")


def future_policy() -> torch.nn.Module:
    """The flow policy with a future: modes, and states that follow."""
    from understudy.testing import policies

    return policies.policy(future=True)


def adapters(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """LeRobot's networks with our losses, and LeRobot's own policies of the same config."""
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    from understudy_zoo.testing.lerobot_policies import (
        MOVING,
        config,
        diffusion_config,
        smolvla_config,
        write_vlm,
    )

    configs = {
        "lerobot-act": (config(), ACTPolicy),
        "lerobot-diffusion": (diffusion_config(), DiffusionPolicy),
        "lerobot-smolvla": (smolvla_config(write_vlm(folder / "vlm")), SmolVLAPolicy),
    }
    for name, (own, theirs) in configs.items():
        yield name, partial(policy_type(name).build, own, MOVING)
        yield f"LeRobot's {theirs.__name__}", partial(theirs, own.theirs)


def examine(name: str, policy: Any) -> dict[str, Any]:
    """The report of one policy, or the error that it ends with."""
    torch.manual_seed(0)
    try:
        report = us.check_policy(policy)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {summarize(error)}")
        return {"policy": name, "error": f"{type(error).__name__}: {summarize(error)}"}
    print(str(report).replace(report.policy, name, 1))
    return {**report.as_json(), "policy": name}


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> int:
    """Examine all, print a line for each proof, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--note", default="", help="of the environment, for the file")
    arguments = parser.parse_args()
    out = arguments.out
    rows = [examine(name, name) for name in OURS]
    rows.append(examine("flow, future", future_policy()))
    ours = len(rows)
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows += [examine(name, make) for name, make in adapters(Path(folder))]
        except ImportError as error:
            rows.append({"policy": "LeRobot's", "error": f"not installed: {summarize(error)}"})
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
        "note": arguments.note,
        "policies": rows,
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(not all(row.get("passed", False) for row in rows[:ours]))


if __name__ == "__main__":
    raise SystemExit(main())
