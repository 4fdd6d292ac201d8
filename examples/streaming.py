"""ACT on frames streamed to any number of processes and hosts; a run resumes at the exact next
sample on another number.

python examples/streaming.py --dummy  # a tiny recording, and no network
torchrun --nnodes 4 --nproc-per-node 8 examples/streaming.py --root s3://bucket/set --steps 10000
accelerate launch examples/streaming.py --repo-id lerobot/pusht --resume-from checkpoints/500.pt
sbatch --nodes 2 --gpus-per-node 8 examples/streaming.sbatch --repo-id lerobot/pusht

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
from small_act import LATENT, SmallACT
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
    parser.add_argument("--chunk-size", type=int, default=16, help="actions of a prediction")
    parser.add_argument("--image-size", type=int, default=96, help="pixels of an image's sides")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    parser.add_argument(
        "--num-threads",
        type=int,
        help="loader threads of a process; by default one per core, at most 8",
    )
    parser.add_argument("--log-freq", type=int, default=5, help="steps between lines of the log")
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
    catalog = us.Catalog.open(args.root or args.repo_id or temporary())
    window = [frame / catalog.fps for frame in range(args.chunk_size)]
    data = us.EpisodeDataset(catalog, delta_timestamps={"action": window})
    saved: dict[str, Any] | None = (
        torch.load(args.resume_from, weights_only=True) if args.resume_from else None
    )
    # A saved order is the same with every number of processes; a new one fits their memory.
    order = {"order": us.Order.from_json(saved["loader"]["order"], data)} if saved else {}
    new = {} if saved else {"batch_size": args.batch_size, "seed": 0}
    options = {"num_threads": args.num_threads or "auto", "device": accelerator.device}
    size = (args.image_size, args.image_size)
    loader = us.Loader(data, memory="1GB", image_size=size, **options, **order, **new)
    batch_size = loader.order.batch_size

    torch.manual_seed(0)  # the same first weights in every process
    widths = [len(catalog.stats[key]["mean"]) for key in ("observation.state", "action")]
    model = SmallACT(list(catalog.camera_keys), *widths, args.chunk_size, catalog.stats)
    model.narrow()
    masters = us.MasterWeights(torch.optim.AdamW(model.named_parameters(), lr=args.lr))
    prepared, optimizer = accelerator.prepare(model, masters)
    if saved:
        loader.load_state_dict(saved["loader"])
        model.load_state_dict(saved["model"])
        masters.load_state_dict(saved["masters"])

    cameras = len(catalog.camera_keys)
    step, frames, begin = saved["step"] if saved else 0, 0, time.perf_counter()
    while step < args.steps:
        position = loader.position
        batch, loss = next(loader), float("nan")
        if not args.dummy:
            # keyed by the position: the same with any number of processes, and after a resume
            draws = torch.randn(
                batch_size, LATENT, generator=torch.Generator().manual_seed(position)
            )
            own = draws[batch["position"].cpu() - position].to(accelerator.device)
            error = prepared(batch, own)
            optimizer.zero_grad()
            accelerator.backward(error)
            masters.clip_grad_norm_(1.0)  # in float32; the prepared optimizer has no such method
            optimizer.step()
            loss = error.item()
        step, frames = step + 1, frames + cameras * len(batch["position"])
        saves = step == args.steps or (args.save_freq and step % args.save_freq == 0)
        if saves or step % args.log_freq == 0:
            rates = [frames / (time.perf_counter() - begin), loss / accelerator.num_processes]
            rate, mean = accelerator.reduce(
                torch.tensor(rates, device=accelerator.device), "sum"
            ).tolist()
            ranks = f"{accelerator.num_processes} processes, {rate:,.0f} frames/s together"
            if accelerator.is_main_process:  # of all hosts
                trained = "" if args.dummy else f"loss {mean:.4f}, "
                print(f"step {step}: {trained}position to save {loader.position} ({ranks})")
            frames, begin = 0, time.perf_counter()
        if saves and accelerator.is_main_process:
            state = {"step": step, "loader": loader.state_dict(), "model": model.state_dict()}
            save(state | {"masters": masters.state_dict()}, args.output_dir)
            model.save(args.output_dir / "policy.pt")
    loader.close()
    accelerator.end_training()  # a process group that is left to the interpreter's end can abort it


def save(state: dict[str, Any], folder: Path) -> None:
    """Write a checkpoint whole or not at all, whenever the process is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / "unfinished")
    os.replace(folder / "unfinished", folder / f"{state['step']}.pt")


if __name__ == "__main__":
    main(arguments())
