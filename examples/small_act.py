"""A small ACT (Zhao et al. 2023) in plain torch: images, state and a latent style in, a chunk of
actions out.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 64
LATENT = 16
HEADS = 4


class SmallACT(nn.Module):
    """`stats` has mean and std of "observation.state" and "action", which the weights hold too."""

    def __init__(
        self, cameras: list[str], state: int, action: int, chunk: int, stats: Any = None
    ) -> None:
        super().__init__()
        self.sizes = {"cameras": cameras, "state": state, "action": action, "chunk": chunk}
        widths = {"state": ("observation.state", state), "action": ("action", action)}
        for key, (recorded, width) in widths.items():
            own = (stats or {}).get(recorded, {})
            for name, usual in (("mean", 0.0), ("std", 1.0)):
                value = torch.as_tensor(own.get(name, [usual] * width), dtype=torch.float32)
                value = value.clamp(min=1e-3) if name == "std" else value
                self.register_buffer(f"{key}_{name}", value)
        steps = [(3, 16), (16, 32), (32, WIDTH), (WIDTH, WIDTH)]
        convolutions = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.ReLU()) for a, b in steps
        ]
        self.vision = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(2))
        self.place = nn.Parameter(torch.randn(len(cameras) * 16 + 2, WIDTH) * 0.02)
        self.read_state = nn.Linear(state, WIDTH)
        self.read_style = nn.Linear(LATENT, WIDTH)
        self.style = nn.Sequential(
            nn.Linear(state + chunk * action, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT)
        )
        self.queries = nn.Parameter(torch.randn(chunk, WIDTH) * 0.02)
        sizes = {"d_model": WIDTH, "nhead": HEADS, "num_encoder_layers": 2, "num_decoder_layers": 1}
        self.transformer = nn.Transformer(
            **sizes, dim_feedforward=128, dropout=0.0, batch_first=True
        )
        self.head = nn.Linear(WIDTH, action)

    def narrow(self) -> "SmallACT":
        """Make the weights bfloat16; the statistics stay float32."""
        for weight in self.parameters():
            weight.data = weight.data.bfloat16()
        return self

    def forward(self, batch: dict[str, Any], noise: Tensor | None = None) -> Tensor:
        """The loss [] with the noise [B, LATENT] of the style; without noise the actions [B, T, A]
        in the units of the recordings.
        """
        dtype = self.place.dtype
        state = (batch["observation.state"].float() - self.state_mean) / self.state_std
        cameras = [batch[camera].to(dtype) / 255 - 0.5 for camera in self.sizes["cameras"]]
        seen = [self.vision(image).transpose(1, 2) for image in cameras]
        style = torch.zeros(len(state), LATENT, dtype=dtype, device=state.device)
        divergence = style.float().sum()
        if noise is not None:
            wanted = (batch["action"].float() - self.action_mean) / self.action_std
            valid = ~batch["action_is_pad"][..., None]
            known = torch.cat([state, (wanted * valid).flatten(1)], dim=1).to(dtype)
            mean, logvar = self.style(known).float().chunk(2, dim=1)
            divergence = 0.5 * (logvar.exp() + mean**2 - 1 - logvar).sum(1).mean()
            style = (mean + noise * (0.5 * logvar).exp()).to(dtype)
        tokens = [*seen, self.read_state(state.to(dtype))[:, None], self.read_style(style)[:, None]]
        memory = torch.cat(tokens, dim=1) + self.place
        queries = self.queries.expand(len(state), -1, -1)
        actions = self.head(self.transformer(memory, queries)).float()
        if noise is None:
            return actions * self.action_std + self.action_mean
        return ((actions - wanted).abs() * valid).mean() + 10 * divergence

    def save(self, path: Path) -> None:
        """Write the policy, whole or not at all."""
        torch.save({"sizes": self.sizes, "weights": self.state_dict()}, f"{path}.unfinished")
        os.replace(f"{path}.unfinished", path)

    @classmethod
    def load(cls, path: str | Path) -> "SmallACT":
        """Read a policy that acts: `SmallACT.load("checkpoints/policy.pt")(batch)`."""
        saved = torch.load(path, weights_only=True)
        policy = cls(**saved["sizes"]).narrow()
        policy.load_state_dict(saved["weights"])
        return policy.eval()
