"""Gradient norm at fixed weights, by the order of the samples and the age of the network.

    python lab/benchmarks/gradient_norm.py [--json] [--out FILE] [--episodes 8000]
        [--batch-size 6144] [--seeds 0 1 2]
    python lab/benchmarks/gradient_norm.py --out FILE --draw docs/img/gradient-norm.png

Along a run the weights follow the order, and the norm follows the weights. Here one network is
trained on clips, and all orders send it batches of the same size, from which it learns nothing.

    stored, same noise  as `stored`, and all ranks draw the same noise and flow time
    stored              all ranks read the same 32 stored frames in a row; each rank draws its own
                        noise
    episode stream      each rank reads its own shuffled episodes one after another, frame by frame
    shard buffer        one reader for all ranks takes the next stored frame of a random one of 16
                        shards, exchanges it for a random one in a buffer of 1,000, and sends that
                        (LeRobot's StreamingLeRobotDataset at its defaults; under accelerate rank 0
                        reads for all)
    clips               `Order.from_datasets` at its defaults
    uniform             any frame anywhere

The task is the simulated table without images (`values.py`), by operators of different speed: the
lengths of the episodes spread like DROID's. The network is a small `flow`, trained as
`understudy train` does by default. An age is the end of a course of so many steps, or a step in a
longer course, whose learning rate has not decayed yet.

    norm      median of the gradient norm over the batches of all seeds, and their 5th and 95th
              percentile
    ratio     of the norm to that of `uniform`: of the medians, with the least and largest of a
              seed; `rms` of the root mean squares, which rare large norms raise
    deff      variance of the mean gradient of a batch over that of independent samples. `model` is
              that of `understudy order explain`, `fitted` has the correlations of gradients of
              single samples, and `measured` is the mean square of the norms, without that of the
              mean gradient over all data
    expected  the `rms` that follows from a `model` or `fitted` deff and the norm of the mean
              gradient
"""

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

import order_baselines
from common import CACHE, Results, say
from order_audit import as_read
from parsers import make_parser
from understudy.config.train import ScheduleConfig
from understudy.optim.lr_schedule import lr_factor
from understudy.policies.draws import generate_draws
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy
from understudy_base import ACTION, STATE, TASK, Batch
from understudy_data.load.explain import LengthTable, droid_like
from understudy_data.order import Order, sample_normal
from understudy_data.order.design_effect import Correlation, design_effect
from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.tabletop import FPS, NOISE
from values import StateTable

CHUNK = 16
MEAN_LENGTH = 130.0
FULL_SPEED = 20
LONGEST = 1000
"""Actions of a sample; frames of an episode: on average, at full speed, at most."""
SHARE = 32
TRAINED = 64
MICRO = 2048
LR = 1e-3
"""Samples of a rank, of a batch that trains, and of a forward pass; peak learning rate."""
SIZES: dict[str, Any] = {"width": 64, "layers": 2, "text_bytes": 1, "noise_samples": 1}
OFFSETS = np.array([0, 0, 1, 2, 4, 8, 16, 32, 64, 128])
"""Frames of an episode whose gradients are compared; the first one with two draws of noise."""
SAME = "stored, same noise"
STORED = "stored"
MARKS = {
    "uniform": ("uniform", "#55a868", "v", 0.06),
    "clips": ("clips (ours)", "#4c72b0", "D", 0.0),
    "episode stream": ("episode stream", "#8172b3", "^", -0.04),
    "shard buffer": ("shard buffer", "#dd8452", "s", -0.09),
    STORED: ("stored, the same\non all ranks", "#c44e52", "o", 0.0),
}
"""Label, color, marker and shift of each drawn order."""


def record(speeds: np.ndarray, first: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Record an episode for each speed: state float32 (frames, 13) and action float32 (frames,
    4).
    """
    env = StateTable()
    episodes = []
    for episode, speed in enumerate(speeds.tolist(), first):
        layout = layout_seed(7, episode)
        rows = []
        observation = env.reset(layout, env.tasks[episode % len(env.tasks)])
        pushes = NOISE * sample_normal(layout, "expert noise", np.arange(LONGEST), (4,))
        pushes[:, :3] *= speed
        for push in pushes:
            action = env.expert()
            action[:3] *= speed
            rows.append((observation["observation.state"], action))
            observation, outcome = env.step(np.clip(action + push, -1, 1))
            if outcome.completed_task:
                break
        states, actions = zip(*rows)
        episodes.append((np.stack(states), np.stack(actions)))
    return episodes


@dataclass(frozen=True)
class Recordings:
    """All frames of the episodes, one after another."""

    lengths: np.ndarray
    """int64 (episodes,)."""
    state: np.ndarray
    """float32 (frames, 13)."""
    action: np.ndarray
    """float32 (frames, 4)."""

    def weights(self, left: np.ndarray) -> np.ndarray:
        """Weights of samples in a batch, float32 (n,), 1 on average; left: int64 (n,), frames to
        the episode's end.

        A sample weighs as much as it has actions.
        """
        short = np.minimum(CHUNK, self.lengths)
        mean = (short * (short + 1) / 2 + CHUNK * (self.lengths - short)).sum() / self.lengths.sum()
        return np.asarray(np.minimum(CHUNK, left) / mean, np.float32)

    def batch(self, episode: np.ndarray, frame: np.ndarray) -> Batch:
        """Samples of int64 (n,) episodes and frames, as a policy takes them."""
        start = (np.cumsum(self.lengths) - self.lengths)[episode]
        ahead = frame[:, None] + np.arange(CHUNK)
        last = self.lengths[episode, None] - 1
        return {
            STATE: torch.from_numpy(self.state[start + frame]),
            ACTION: torch.from_numpy(self.action[start[:, None] + np.minimum(ahead, last)]),
            f"{ACTION}_is_pad": torch.from_numpy(ahead > last),
            TASK: [""] * len(episode),
        }


def recordings(cache: Path, episodes: int, jobs: int) -> Recordings:
    """Recordings of so many episodes, made where the cache has none."""
    path = cache / f"gradient-norm-{episodes}.npz"
    if not path.exists():
        say(f"recording {episodes:,} episodes")
        speeds = np.minimum(1.0, FULL_SPEED / droid_like(episodes, MEAN_LENGTH))
        parts = np.array_split(speeds, max(1, episodes // 100))
        first = np.cumsum([0, *(part.size for part in parts[:-1])]).tolist()
        with ProcessPoolExecutor(jobs) as pool:
            made = [episode for part in pool.map(record, parts, first) for episode in part]
        state, action = (np.concatenate(columns) for columns in zip(*made))
        path.parent.mkdir(parents=True, exist_ok=True)
        making = path.with_suffix(".making.npz")
        np.savez(
            making,
            lengths=np.array([len(states) for states, _ in made]),
            state=state,
            action=action,
        )
        making.replace(path)
    with np.load(path) as file:
        return Recordings(**file)


def make_policy(data: Recordings, seed: int) -> FlowPolicy:
    """Make a policy with fresh weights."""
    sizes = SIZES
    config = FlowPolicyConfig(
        data.action.shape[1], data.state.shape[1], cameras=(), chunk=CHUNK, **sizes
    )
    columns = {ACTION: data.action, STATE: data.state}
    normalization = {
        key: {"offset": values.mean(0).tolist(), "spread": values.std(0).tolist()}
        for key, values in columns.items()
    }
    torch.manual_seed(seed)
    return FlowPolicy(config, normalization)


def gradient(policy: FlowPolicy, batch: Batch, draws: Mapping[str, Tensor]) -> Tensor:
    """Gradient of the loss of a batch, float32 (parameters,). It stays in the parameters, too."""
    policy.zero_grad()
    count = policy.counts(batch, draws)["flow"].sum()
    for first in range(0, len(batch[TASK]), MICRO):
        part = slice(first, first + MICRO)
        losses = policy.losses(
            {k: v[part] for k, v in batch.items()}, {k: v[part] for k, v in draws.items()}
        )
        (losses["flow"].sum.sum() / count).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


class Course:
    """A network and its training, in the order of clips."""

    def __init__(self, data: Recordings, seed: int, steps: int) -> None:
        self.policy = make_policy(data, seed)
        self.data = data
        self.steps = steps
        self.done = 0
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), LR, betas=(0.9, 0.95), weight_decay=0.01
        )
        self.schedule = replace(ScheduleConfig(), warmup_steps=ScheduleConfig().warmup(steps))
        self.read = as_read(Order.from_datasets(table(data), batch_size=TRAINED, seed=seed))[0]
        self.generator = torch.Generator().manual_seed(seed)

    def gradient(self, episode: np.ndarray, frame: np.ndarray) -> Tensor:
        """Gradient of a batch with noise of its own."""
        draws = generate_draws(self.policy.random_spec("train"), len(episode), self.generator)
        return gradient(self.policy, self.data.batch(episode, frame), draws)

    def train(self, until: int) -> None:
        """Train until a step."""
        for step in range(self.done, until):
            self.optimizer.param_groups[0]["lr"] = LR * lr_factor(step, self.schedule, self.steps)
            episode, frame, _ = self.read(np.arange(step * TRAINED, (step + 1) * TRAINED))
            self.gradient(episode, frame)
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
            self.optimizer.step()
        self.done = until


def table(data: Recordings) -> LengthTable:
    """The recordings as a source of an order."""
    return LengthTable("table", data.lengths, 1, (0, CHUNK - 1), FPS, 1)


def orders(data: Recordings, size: int, seed: int) -> dict[str, order_baselines.Read]:
    """The orders by name; an epoch of each can be read, in whole batches."""
    ranks = size // SHARE
    whole = int(data.lengths.sum()) // size * size
    clips, uniform = (
        as_read(Order.from_datasets(table(data), batch_size=size, seed=seed, mode=mode))[0]
        for mode in ("clips", "uniform")
    )
    stored = order_baselines.stored_on_each_rank(data.lengths, size, ranks)
    return {
        SAME: stored,
        STORED: stored,
        "episode stream": order_baselines.episode_stream(
            data.lengths, size, ranks, 1, whole, SHARE, seed
        ),
        "shard buffer": order_baselines.shard_buffer(data.lengths, whole, seed=seed),
        "clips": clips,
        "uniform": uniform,
    }


@dataclass(frozen=True)
class Singles:
    """Gradients of single samples: their variance, and the correlations of two of an episode."""

    variance: float
    model: Correlation
    same_frame: float
    """Correlation of two draws of noise for one frame."""


def measure_singles(
    course: Course, mean: Tensor, episodes: int, rng: np.random.Generator
) -> Singles:
    """Compare gradients in so many episodes, drawn in proportion to their lengths; mean: gradient
    over all data.
    """
    lengths = course.data.lengths
    products: dict[int, list[float]] = {}
    squares: list[float] = []
    for episode in rng.choice(lengths.size, episodes, p=lengths / lengths.sum()):
        frames = rng.integers(lengths[episode]) + OFFSETS
        frames = frames[frames < lengths[episode]]
        apart = (
            torch.stack(
                [course.gradient(np.array([episode]), np.array([frame])) for frame in frames]
            )
            - mean
        )
        apart *= torch.from_numpy(course.data.weights(lengths[episode] - frames))[:, None]
        products_here = (apart @ apart.T).tolist()
        squares += [row[i] for i, row in enumerate(products_here)]
        for i, j in combinations(range(len(frames)), 2):
            products.setdefault(int(frames[j] - frames[i]), []).append(products_here[i][j])
    variance = fmean(squares)
    distances = np.array(sorted(products))
    values = np.array([fmean(products[distance]) for distance in distances.tolist()]) / variance
    counts = np.array([len(products[distance]) for distance in distances.tolist()])
    return Singles(variance, fit(distances, values, counts), float(values[0]))


def fit(distances: np.ndarray, values: np.ndarray, counts: np.ndarray) -> Correlation:
    """Fit a `Correlation` to the mean correlation at each distance by least squares."""
    best = Correlation(0.0, 0.0)
    least = math.inf
    root = np.sqrt(counts)
    for frames in np.geomspace(1, 200, 60).tolist():
        terms = np.stack([np.ones(distances.size), np.exp(-distances / frames)], axis=1)
        episode, near = np.linalg.lstsq(terms * root[:, None], values * root)[0].clip(0, 1).tolist()
        error = float((counts * (values - terms @ (episode, near)) ** 2).sum())
        if error < least and episode + near <= 1:
            best = Correlation(episode, near, frames)
            least = error
    return best


def measure_age(
    course: Course,
    reads: Mapping[str, order_baselines.Read],
    args: argparse.Namespace,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Measure all orders at the weights of a course."""
    size = args.batch_size
    steps = int(course.data.lengths.sum()) // args.batch_size
    gradients: dict[str, list[Tensor]] = {name: [] for name in reads}
    places: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in reads}
    for step in rng.permutation(np.resize(np.arange(steps), max(steps, args.batches)))[
        : args.batches
    ]:
        for name, read in reads.items():
            # An epoch in stored order has as many steps for each rank alone: one in so many is
            # measured.
            at = int(step) * (size // SHARE if name in (SAME, STORED) else 1)
            episode, frame, _ = read(np.arange(at * size, (at + 1) * size))
            places[name].append((episode, frame))
            # a rank's share is the mean of equal ones
            sent = slice(0, SHARE if name == SAME else size)
            gradients[name].append(course.gradient(episode[sent], frame[sent]))
    uniform = torch.stack(gradients["uniform"])
    total = uniform.sum(dim=0)
    # Products of two batches: the square of one batch's norm has its noise.
    mean_square = float(
        (total @ total - uniform.square().sum()) / (len(uniform) * (len(uniform) - 1))
    )
    mean_square = max(mean_square, 0.0)
    singles = measure_singles(course, total / len(uniform), args.singles, rng)
    row: dict[str, Any] = {
        "trained": course.done,
        "course": course.steps,
        "mean_norm": math.sqrt(mean_square),
        "single_deviation": math.sqrt(singles.variance),
        "correlation": asdict(singles.model) | {"same_frame": singles.same_frame},
        "orders": {},
    }
    for name in reads:
        norms = [float(g.norm()) for g in gradients[name]]
        episodes, frames = (np.stack(column) for column in zip(*places[name]))
        # Ranks with noise of their own never have the same sample twice.
        apart = frames if name == SAME else frames + np.arange(size) / (1 << 30)
        deff = {
            "model": float(design_effect(episodes, frames).mean()),
            "fitted": float(design_effect(episodes, apart, singles.model).mean()),
            "measured": (fmean(norm**2 for norm in norms) - mean_square) * size / singles.variance,
        }
        distinct = fmean(len(np.unique(batch)) for batch in episodes)
        row["orders"][name] = {"norms": norms, "episodes": distinct, "deff": deff}
    for figures in row["orders"].values():
        figures["expected"] = {
            kind: math.sqrt(
                (mean_square + singles.variance / size * figures["deff"][kind])
                / (mean_square + singles.variance / size * row["orders"]["uniform"]["deff"][kind])
            )
            for kind in ("model", "fitted")
        }
    return row


def measure(seed: int, data: Recordings, args: argparse.Namespace) -> dict[str, Any]:
    """Train the courses of a seed, and measure at each age."""
    torch.set_num_threads(1)
    began = time.process_time()
    rng = np.random.default_rng(seed)
    reads = orders(data, args.batch_size, seed)
    ages = []
    for steps, stops in args.courses.items():
        course = Course(data, seed, steps)
        for stop in stops:
            course.train(stop)
            ages.append(measure_age(course, reads, args, rng))
    return {"name": f"seed {seed}", "ages": ages, "cpu_minutes": (time.process_time() - began) / 60}


def summarize(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pool the seeds: for each age the figures of each order, medians over seeds where nothing else
    is named.
    """
    pooled = []
    for of_seeds in zip(*(row["ages"] for row in rows), strict=True):
        middle = {
            order: [float(np.median(age["orders"][order]["norms"])) for age in of_seeds]
            for order in of_seeds[0]["orders"]
        }
        age = {key: of_seeds[0][key] for key in ("trained", "course")}
        age |= {
            key: median(one[key] for one in of_seeds) for key in ("mean_norm", "single_deviation")
        }
        age["correlation"] = _medians([one["correlation"] for one in of_seeds])
        age["orders"] = {}
        for order, norms in middle.items():
            figures = [one["orders"][order] for one in of_seeds]
            every, base = (_all(of_seeds, name) for name in (order, "uniform"))
            ratios = [norm / least for norm, least in zip(norms, middle["uniform"], strict=True)]
            age["orders"][order] = {
                "norm": float(np.median(every)),
                "interval": np.percentile(every, [5, 95]).tolist(),
                "ratio": float(np.median(every) / np.median(base)),
                "ratio_seeds": [min(ratios), max(ratios)],
                "rms": float(np.sqrt(np.square(every).mean() / np.square(base).mean())),
                "episodes": median(one["episodes"] for one in figures),
                "deff": _medians([one["deff"] for one in figures]),
                "expected": _medians([one["expected"] for one in figures]),
            }
        pooled.append(age)
    return pooled


def _all(of_seeds: Sequence[dict[str, Any]], order: str) -> np.ndarray:
    """Norms of an order over all seeds."""
    return np.concatenate([age["orders"][order]["norms"] for age in of_seeds])


def _medians(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each value."""
    return {key: median(one[key] for one in dicts) for key in dicts[0]}


def draw(ages: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the norms of each order at the ends of the courses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    ends = [age for age in ages if age["trained"] == age["course"]]
    figure, axes = pyplot.subplots(figsize=(6, 5), layout="constrained")
    floor = 0.0
    for order, (name, color, marker, shift) in MARKS.items():
        rows = [age["orders"][order] for age in ends]
        norms = np.array([row["norm"] for row in rows])
        places = np.arange(len(ends)) + shift
        low, high = np.array([row["interval"] for row in rows]).T
        axes.errorbar(
            places, norms, [norms - low, high - norms], color=color, marker=marker, capsize=3
        )
        floor = max(floor * 1.27, float(norms[-1]))  # labels must not overlap
        text = f"{name}: {rows[-1]['ratio']:.1f}×"
        axes.annotate(
            text,
            (len(ends) - 0.8, floor),
            color=color,
            va="center",
            fontsize=13,
            annotation_clip=False,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlim(-0.3, len(ends) + 0.9)
    axes.set_xticks(range(len(ends)), [f"{age['course']:,}" for age in ends])
    axes.set_xlabel("steps trained", fontsize=13, x=0.35)
    axes.set_title("Gradient norm of a batch, by its order", fontsize=14)
    axes.tick_params(labelsize=13)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def name_of(age: Mapping[str, Any]) -> str:
    """Name of an age."""
    trained = age["trained"]
    course = age["course"]
    return f"{trained:,} steps" if trained == course else f"step {trained:,} of {course:,}"


def render(ages: Sequence[dict[str, Any]]) -> str:
    """Render the table: a block per age, a row per order."""
    head = (
        f"{'':20}{'norm':>8}{'5 to 95 %':>17}{'ratio':>8}{'of seeds':>16}{'rms':>8}{'episodes':>10}"
    )
    head += f"{'deff model':>13}{'fitted':>9}{'measured':>10}{'expected model':>16}{'fitted':>8}"
    lines = [head]
    for age in ages:
        correlation = ", ".join(f"{key} {value:.3g}" for key, value in age["correlation"].items())
        lines += [
            "",
            f"{name_of(age)}: norm of the mean gradient {age['mean_norm']:.3f}; correlation: "
            f"{correlation}",
        ]
        for order, row in age["orders"].items():
            (low, high), (least, most), deff = row["interval"], row["ratio_seeds"], row["deff"]
            cells = (
                f"{order:20}{row['norm']:8.3f}{f'{low:.3f} to {high:.3f}':>17}{row['ratio']:8.2f}",
                f"{f'{least:.2f} to {most:.2f}':>16}{row['rms']:8.2f}{row['episodes']:10,.0f}",
                f"{deff['model']:13,.1f}{deff['fitted']:9,.1f}{deff['measured']:10,.1f}",
                f"{row['expected']['model']:16.2f}{row['expected']['fitted']:8.2f}",
            )
            lines.append("".join(cells))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument(
        "--out",
        default="",
        help="file of the results, written after each seed; a later run adds to it",
    )
    parser.add_argument("--cache", default=CACHE, type=Path, help="folder of the recordings")
    parser.add_argument("--episodes", type=int, default=8000)
    parser.add_argument(
        "--batch-size", type=int, default=6144, help=f"a multiple of {SHARE}, the samples of a rank"
    )
    parser.add_argument("--batches", type=int, default=32, help="of each order at each age")
    parser.add_argument(
        "--singles", type=int, default=400, help="episodes whose single samples are compared"
    )
    parser.add_argument(
        "--ages", type=int, nargs="+", default=[0, 100, 500, 1500], help="steps of the courses"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes, one per seed at most",
    )
    parser.add_argument("--draw", default="", help="file of the picture")
    args = parser.parse_args(arguments)
    if args.batch_size % SHARE or args.batch_size < SHARE:
        parser.error(f"--batch-size {args.batch_size}: must be a multiple of {SHARE}")
    if args.batches < 2:
        parser.error(
            f"--batches {args.batches}: must be at least 2, the mean gradient is a product of two"
        )
    longest = max(args.ages)
    args.courses = {steps: [steps] for steps in args.ages} | {
        longest: sorted({longest // 3, longest})
    }
    settings = {"seconds": 0, "recordings": f"{args.episodes} episodes", "rounds": args.batches}
    results = Results(["seeds"], args.out, batch_size=args.batch_size, ages=args.ages, **settings)
    missing = [seed for seed in args.seeds if not results.has("seeds", f"seed {seed}")]
    if missing:
        data = recordings(args.cache, args.episodes, args.jobs)
        results.found["frames"] = int(data.lengths.sum())
        with ProcessPoolExecutor(min(args.jobs, len(missing))) as pool:
            for row in pool.map(partial(measure, data=data, args=args), missing):
                results.add("seeds", row, f"{row['name']}: {row['cpu_minutes']:.1f} CPU minutes")
    results.found["ages"] = summarize(results.found["seeds"])
    results.write()
    if args.draw:
        draw(results.found["ages"], Path(args.draw))
    print(json.dumps(results.found) if args.json else render(results.found["ages"]))


if __name__ == "__main__":
    main()
