"""Frames streamed to any number of processes and hosts; a run resumes at the exact next sample on
another number.

python examples/streaming.py --dummy  # a tiny recording, and no network
torchrun --nnodes 4 --nproc-per-node 8 examples/streaming.py --root s3://bucket/set --steps 10000
accelerate launch examples/streaming.py --repo-id lerobot/pusht --resume-from checkpoints/500.pt

Each process reads its share of every global batch. The weights are bfloat16, with float32 masters
beside them.
"""

import os
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tiny import temporary

import understudy as us


def arguments() -> Namespace:
    parser = ArgumentParser()
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--root", help="folder or address of a dataset; by default a tiny recording is made"
    )
    source.add_argument("--repo-id", help="OWNER/NAME of a dataset on the hub, in place of --root")
    parser.add_argument("--steps", type=int, default=20, help="last step, also of a resumed run")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples of a step over all processes"
    )
    parser.add_argument(
        "--num-threads",
        type=int,
        help="loader threads of a process; by default one per core, at most 8",
    )
    parser.add_argument(
        "--save-freq", type=int, default=10, help="steps between checkpoints; 0: at the end alone"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument(
        "--resume-from", type=Path, help="a checkpoint; the number of processes may be another"
    )
    parser.add_argument(
        "--dummy", action="store_true", help="load batches without training a network"
    )
    return parser.parse_args()


def main(args: Namespace) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    data = us.EpisodeDataset(args.root or args.repo_id or temporary())
    saved: dict[str, Any] | None = (
        torch.load(args.resume_from, weights_only=True) if args.resume_from else None
    )
    # A saved order is the same with every number of processes; a new one fits their memory.
    order = {"order": us.Order.from_json(saved["loader"]["order"], data)} if saved else {}
    new = {} if saved else {"batch_size": args.batch_size, "seed": 0}
    threads = args.num_threads or "auto"
    loader = us.Loader(
        data, num_threads=threads, memory="1GB", device=accelerator.device, **order, **new
    )

    torch.manual_seed(0)  # the same first weights in every process
    sample = data[0]
    model = torch.nn.Linear(len(sample["observation.state"]), len(sample["action"])).to(
        torch.bfloat16
    )
    masters = us.MasterWeights(torch.optim.AdamW(model.named_parameters(), lr=1e-2))
    prepared, optimizer = accelerator.prepare(model, masters)
    if saved:
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        masters.load_state_dict(saved["masters"])

    cameras = len(data.catalog.camera_keys)
    step, frames, begin = saved["step"] if saved else 0, 0, time.perf_counter()
    while step < args.steps:
        batch, loss = next(loader), float("nan")
        if not args.dummy:
            predicted = prepared(batch["observation.state"].to(torch.bfloat16)).float()
            error = (predicted - batch["action"].float()).square().mean()
            optimizer.zero_grad()
            accelerator.backward(error)
            masters.clip_grad_norm_(1.0)  # in float32; the prepared optimizer has no such method
            optimizer.step()
            loss = error.item()
        step, frames = step + 1, frames + cameras * len(batch["position"])
        if (args.save_freq and step % args.save_freq == 0) or step == args.steps:
            rates = [frames / (time.perf_counter() - begin), loss / accelerator.num_processes]
            rate, mean = accelerator.reduce(
                torch.tensor(rates, device=accelerator.device), "sum"
            ).tolist()
            ranks = f"{accelerator.num_processes} processes, {rate:,.0f} frames/s together"
            if accelerator.is_main_process:  # of all hosts
                trained = "" if args.dummy else f"loss {mean:.4f}, "
                print(f"step {step}: {trained}position to save {loader.position} ({ranks})")
                state = {"step": step, "loader": loader.state_dict()}
                save(
                    state | {"model": model.state_dict(), "masters": masters.state_dict()},
                    args.output_dir,
                )
            frames, begin = 0, time.perf_counter()
    loader.close()
    accelerator.end_training()  # a process group that is left to the interpreter's end can abort it


def save(state: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint whole or not at all, whenever the process is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "unfinished")
    os.replace(folder / "unfinished", folder / f"{state['step']}.pt")


if __name__ == "__main__":
    main(arguments())
