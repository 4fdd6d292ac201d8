"""The flow policy as a function of tensors alone, for graphs that run without this package
(`policies/graph`).
"""

import torch
from torch import Tensor

from understudy import ObservingPolicy
from understudy_base import ACTION, HEAD, STATE, TASK
from understudy_zoo.graph import GraphInput, PolicyGraph


class FlowGraph(PolicyGraph):
    """Actions of one robot from its images, state, instruction and noise; the Euler steps are
    unrolled.

    Inputs of `forward` are `inputs`, in that sequence.
    """

    def __init__(
        self, policy: ObservingPolicy, head: int, cameras: dict[str, tuple[int, int]], steps: int
    ) -> None:
        """Take the policy in.

        Args:
            policy: a flow policy with float32 arithmetic.
            head: number of the robot's norm head.
            cameras: height and width of the robot's cameras by key; the policy's others are
                missing.
            steps: Euler steps.

        Raises:
            ValueError: the policy computes in another precision.
        """
        super().__init__()
        config = policy.config
        if config.compute != "float32":
            raise ValueError(f"compute is {config.compute}; a graph of a flow policy is float32")
        self.policy = policy
        self.number = head
        self.steps = steps
        self.action_dim = policy.normalizer.dims[ACTION][head]
        self.state_dim = policy.normalizer.dims[STATE][head] if config.state_dim else 0
        inputs = [
            GraphInput(key, "uint8", (3, *cameras[key])) for key in config.cameras if key in cameras
        ]
        if self.state_dim:
            inputs.append(GraphInput(STATE, "float32", (self.state_dim,)))
        inputs.append(GraphInput(TASK, "int64", (config.text_bytes,)))
        inputs.append(GraphInput("noise", "float32", (config.chunk, config.noise_dim)))
        self.inputs = tuple(inputs)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Predict the chunk, float32 [B, T, A] in the robot's units."""
        config = self.policy.config
        batch = {
            graph_input.name: tensor
            for graph_input, tensor in zip(self.inputs, tensors, strict=True)
        }
        noise = batch.pop("noise")
        batch[self.policy.TASK_TOKENS] = batch.pop(TASK)
        rows = noise.shape[0]
        for key in config.cameras:
            if key not in batch:
                batch[key] = torch.zeros(
                    (rows, 3, *config.image_size), dtype=torch.uint8, device=noise.device
                )
                batch[f"{key}_is_missing"] = torch.ones(rows, dtype=torch.bool, device=noise.device)
        if self.state_dim:
            batch[STATE] = torch.nn.functional.pad(
                batch[STATE], (0, config.state_dim - self.state_dim)
            )
        if len(self.policy.norm_heads) > 1:
            batch[HEAD] = torch.full((rows,), self.number, dtype=torch.int64, device=noise.device)
        return self.policy.act(batch, {"noise": noise}, self.steps)[..., : self.action_dim]

    def prepare(self, task: str) -> Tensor:
        """Return the tokens of an instruction, int64 [1, L]."""
        return self.policy.task_tokens([task])
