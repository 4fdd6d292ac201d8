"""Hugging Face Accelerate: each process loads its share of every global batch; Accelerate keeps the model.

The weights are bfloat16, with float32 masters beside them.

accelerate launch examples/accelerate_loop.py [DATASET]
"""

import torch
from accelerate import Accelerator
from tiny import dataset

import understudy as us

accelerator = Accelerator(cpu=not torch.cuda.is_available())
data = us.EpisodeDataset(dataset())

torch.manual_seed(0)  # the same first weights in every process
sample = data[0]
model = torch.nn.Linear(len(sample["observation.state"]), len(sample["action"])).to(torch.bfloat16)
masters = us.MasterWeights(torch.optim.AdamW(model.named_parameters(), lr=1e-2))
model, optimizer = accelerator.prepare(model, masters)

place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
with us.Loader(data, batch_size=32, seed=0, memory="1GB", **place) as loader:  # 32 over all processes
    for step, batch in zip(range(20), loader):
        state, action = (batch[key].to(accelerator.device) for key in ("observation.state", "action"))
        loss = (model(state.to(torch.bfloat16)).float() - action.float()).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        masters.clip_grad_norm_(1.0)  # in float32; the prepared optimizer has no such method
        optimizer.step()
        if step % 5 == 0:
            accelerator.print(f"step {step}: loss {loss.item():.4f}, position to save {loader.position}")
