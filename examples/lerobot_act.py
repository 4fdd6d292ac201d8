"""LeRobot's ACT on batches of understudy: the same keys and shapes as those of its own dataset.

python examples/lerobot_act.py [DATASET]     (needs LeRobot: pip install lerobot)
"""

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from tiny import dataset

import understudy as us

catalog = us.Catalog.open(dataset())
(camera,) = catalog.camera_keys[:1]
data = us.EpisodeDataset(catalog, delta_timestamps={"action": [i / catalog.fps for i in range(16)]})

sample = data[0]
inputs = {
    camera: PolicyFeature(FeatureType.VISUAL, tuple(sample[camera].shape)),
    "observation.state": PolicyFeature(FeatureType.STATE, tuple(sample["observation.state"].shape)),
}
outputs = {"action": PolicyFeature(FeatureType.ACTION, tuple(sample["action"].shape[1:]))}
sizes = {
    "chunk_size": 16,
    "n_action_steps": 16,
    "dim_model": 64,
    "n_heads": 4,
    "dim_feedforward": 128,
}
config = ACTConfig(
    input_features=inputs, output_features=outputs, pretrained_backbone_weights=None, **sizes
)
torch.manual_seed(0)  # of the first weights and of dropout
policy = ACTPolicy(config)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)

with us.Loader(data, batch_size=8, seed=0, memory="1GB") as loader:
    for step, batch in zip(range(4), loader):
        floats = {key: value.float() for key, value in batch.items() if key in (*inputs, *outputs)}
        floats[camera] /= 255  # in [0, 1], as ACT expects
        loss, _ = policy(batch | floats)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}, position to save {loader.position}")
