"""A plain training loop: threads make the batches, and one integer is the whole state of the data.

python examples/plain_loop.py [DATASET]
"""

import torch
from tiny import dataset

import understudy as us

catalog = us.Catalog.open(dataset())
chunk = [i / catalog.fps for i in range(16)]  # the next 16 actions
data = us.EpisodeDataset(catalog, delta_timestamps={"action": chunk})
order = us.Order.from_datasets([data], batch_size=32, seed=0)

torch.manual_seed(0)  # of the first weights; the order has a seed of its own
width = data[0]["observation.state"].shape[0], data[0]["action"].shape[1]
model = torch.nn.Linear(width[0], 16 * width[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

position = 0  # or what the checkpoint says
with us.Loader([data], order=order, memory="1GB", position=position) as loader:
    for step, batch in zip(range(20), loader):
        state = batch["observation.state"].float()  # some datasets hold float64
        predicted = model(state).unflatten(1, (16, -1))  # (B, 16, action)
        error = (predicted - batch["action"]).square()
        loss = torch.where(batch["action_is_pad"][..., None], 0.0, error).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step}: loss {loss.item():.4f}, position to save {loader.position}")
