"""A small `lerobot-act` for the tests of the adapter; LeRobot itself is not imported."""

from typing import Any

from understudy.policies.lerobot.config import LerobotActConfig

CAMERA = "observation.images.top"
NORMALIZATION = {
    "heads": [""],
    "action": {"offset": [[1.0, 2.0]], "spread": [[0.5, 0.0]]},
    "observation.state": {"offset": [[0.0, 1.0, 2.0]], "spread": [[1.0, 2.0, 0.0]]},
    "delta": [[False, False]],
}
SMALL: dict[str, Any] = {
    "image_size": (32, 40),
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 16,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
}


def config(**changes: Any) -> LerobotActConfig:
    facts: dict[str, Any] = {"action_dim": 2, "state_dim": 3, "cameras": (CAMERA,), "chunk": 4}
    return LerobotActConfig(**(SMALL | facts | changes))
