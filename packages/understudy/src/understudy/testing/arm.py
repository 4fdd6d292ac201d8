"""A tiny policy for the arm of `understudy_client.testing.arm`."""

from pathlib import Path
from typing import Any

from understudy.policies.flow.model import FlowPolicy
from understudy.testing.policies import config
from understudy_client.testing.arm import CAMERAS, CENTER, DEVIATION, NAMES, arm_contract


def write_arm_policy(folder: Path, **changes: Any) -> Path:
    """Write a tiny policy of both robots with its contract; every parameter matters."""
    import torch

    heads = ["arm", "other"]
    affine = {"offset": [CENTER.tolist()] * 2, "spread": [(2 * DEVIATION).tolist()] * 2}
    normalization = {"heads": heads, "action": affine, "observation.state": affine}
    cameras = tuple(f"observation.images.{name}" for name in CAMERAS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shape = {"action_dim": 7, "state_dim": 7, "cameras": cameras, "chunk": 16}
        policy = FlowPolicy(config(**(shape | changes)), normalization)
        with torch.no_grad():
            for parameter in policy.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.1)
    facts = {
        "action_names": list(NAMES),
        "state_names": list(NAMES),
        "cameras": list(cameras),
        "fps": 30,
    }
    contract = arm_contract().to_json() | {"provenance": {"run": "r", "step": 2}}
    policy.save(folder, metadata={"heads": dict.fromkeys(heads, facts), "contract": contract})
    return folder
