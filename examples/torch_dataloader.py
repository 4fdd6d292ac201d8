"""The same batches in torch's DataLoader: whole batches from workers, or samples of a map-style
dataset by a sampler.

python examples/torch_dataloader.py [DATASET]
"""

from itertools import islice

from tiny import dataset
from torch.utils.data import DataLoader

import understudy as us

WORKERS, BATCH = 2, 8

if __name__ == "__main__":  # workers that are spawned import this file
    data = us.EpisodeDataset(dataset())

    # Batches: with lanes for all workers, each worker reads clips of its own and each frame is
    # decoded once.
    order = us.Order.from_datasets(data, batch_size=BATCH, seed=0, clip=16, lanes=BATCH * WORKERS)
    stream = us.EpisodeStream(data, order=order, memory="1GB")
    for batch in islice(DataLoader(stream, batch_size=None, num_workers=WORKERS), 5):
        state = stream.state_after(batch)  # to resume: stream.load_state_dict(state)
        print(state["position"], sorted(batch["episode_index"].tolist()), batch["action"].shape)

    # Samples: any frame anywhere, one epoch per pass.
    sampler = us.EpisodeSampler(data, seed=0, batch_size=BATCH)
    samples = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=WORKERS)
    for step, batch in enumerate(samples, 1):
        saved = sampler.state_dict(consumed=step * BATCH)
        if step % 10 == 0:
            print(f"batch {step}: {batch['action'].shape}, position to save {saved['position']}")
