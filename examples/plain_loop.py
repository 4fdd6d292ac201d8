"""A plain training loop: threads make the batches, and one position is the whole state of the data.

python examples/plain_loop.py [DATASET]
"""

import torch
from tiny import dataset

import understudy as us

catalog = us.Catalog.open(dataset())
chunk = [i / catalog.fps for i in range(16)]  # the next 16 actions
data = us.EpisodeDataset(catalog, delta_timestamps={"action": chunk})

torch.manual_seed(0)  # of the first weights; the order has a seed of its own
width = data[0]["observation.state"].shape[0], data[0]["action"].shape[1]
model = torch.nn.Linear(width[0], 16 * width[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with us.Loader(data, batch_size=32, seed=0, memory="1GB") as loader:
    # to resume: loader.load_state_dict(torch.load("loader.pt"))
    for step, batch in zip(range(20), loader):
        state = batch["observation.state"].float()  # some datasets hold float64
        predicted = model(state).unflatten(1, (16, -1))  # (B, 16, action)
        error = (predicted - batch["action"]).square()
        loss = torch.where(batch["action_is_pad"][..., None], 0.0, error).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            saved = (
                loader.state_dict()
            )  # save it with the weights; torch.distributed.checkpoint takes the loader itself
            print(f"step {step}: loss {loss.item():.4f}, position to save {saved['position']}")
