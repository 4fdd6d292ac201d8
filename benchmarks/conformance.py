"""Conformance of loaders: `check_loader` on the loaders of understudy and, where installed, of LeRobot.

    python benchmarks/conformance.py [--json] [--lerobot PYTHON]

PYTHON is an interpreter with LeRobot, by default the one that runs this script. The dataset is generated: six episodes
of a simulated arm with two cameras, in several data and video files. LeRobot's loaders are made as its training script
makes them: `EpisodeAwareSampler` and Accelerate's sharding for the map-style dataset, a plain DataLoader for the
streaming one, of all episodes and of two. JSON has {"ours", "lerobot_map", "lerobot_streaming",
"lerobot_streaming_episodes"}: {check: true, false, or null where not checked}, null where LeRobot is not installed, and
"details". Linux only.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import understudy as us
from planted_faults import CAMERAS, FPS, TASKS, episode_images, episode_rows, features
from understudy.data.write.writer import EpisodeWriter
from understudy_conformance import LoaderReport, check_loader

LENGTHS, BATCH = (18, 22, 16, 20, 17, 15), 8
WINDOWS = {"action": [i / FPS for i in range(6)], CAMERAS[0]: [-1 / FPS, 0.0, 1 / FPS]}
NAMES = ("lerobot_map", "lerobot_streaming", "lerobot_streaming_episodes")


def write_set(root: Path) -> None:
    """Write the dataset, with two or three episodes a file."""
    sizes: dict[str, Any] = {"data_file_mb": 0.01, "video_file_mb": 0.03}
    with EpisodeWriter(root, fps=FPS, features=features(), codec="libx264", gop=2, **sizes) as writer:
        for episode, length in enumerate(LENGTHS):
            rows = episode_rows(episode, length)
            seen = [episode_images(camera, episode, rows["observation.state"]) for camera in range(2)]
            for frame in range(length):
                values = {key: rows[key][frame] for key in rows}
                images = {key: seen[camera][frame] for camera, key in enumerate(CAMERAS)}
                writer.add_frame(values | images, TASKS[episode % 2])
            writer.save_episode()


def check_ours(root: Path) -> LoaderReport:
    """Check `us.Loader`."""

    def make_loader(rank: int, world_size: int, num_workers: int) -> us.Loader:
        options: dict[str, Any] = {"delta_timestamps": WINDOWS, "num_threads": num_workers + 1}
        return us.Loader(root, batch_size=BATCH, rank=rank, world_size=world_size, **options)

    return check_loader(make_loader, root, delta_timestamps=WINDOWS)


def check_map(root: Path) -> LoaderReport:
    """Check LeRobot's map-style dataset, sampled and resumed as its training script does."""
    from accelerate.data_loader import prepare_data_loader
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.datasets.sampler import EpisodeAwareSampler, compute_sampler_state

    data = LeRobotDataset("local/set", root=root, delta_timestamps=WINDOWS, return_uint8=True)
    ends = [data.meta.episodes[f"dataset_{end}_index"] for end in ("from", "to")]

    def make_loader(rank: int = 0, world_size: int = 1, num_workers: int = 0, state: Any = None) -> Any:
        sampler = EpisodeAwareSampler(*ends, shuffle=True, seed=0)
        if state is not None:
            sampler.load_state_dict(state)
        loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=num_workers)
        return prepare_data_loader(loader, num_processes=world_size, process_index=rank)

    def save_state(loader: Any, consumed: Any) -> Any:
        world = consumed.world_size
        steps = consumed.epoch * -(-len(data) // (BATCH * world)) + consumed.batches
        return compute_sampler_state(steps, len(data), BATCH, world)

    def load_state(loader: Any, state: Any) -> Any:
        return make_loader(*loader.made_for, state=state)

    def make(rank: int, world_size: int, num_workers: int) -> Any:
        loader = make_loader(rank, world_size, num_workers)
        loader.made_for = rank, world_size, num_workers
        return loader

    options: dict[str, Any] = {"save_state": save_state, "load_state": load_state}
    return check_loader(make, root, delta_timestamps=WINDOWS, **options)


def check_streaming(root: Path, episodes: list[int] | None = None) -> LoaderReport:
    """Check LeRobot's streaming dataset, of some episodes. It has no ranks of its own and no state."""
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    def make_loader(num_workers: int) -> Any:
        options: dict[str, Any] = {"delta_timestamps": WINDOWS, "return_uint8": True, "episodes": episodes}
        return DataLoader(
            StreamingLeRobotDataset("local/set", root=root, **options), batch_size=BATCH, num_workers=num_workers
        )

    return check_loader(make_loader, us.EpisodeDataset(root, WINDOWS, episodes))


def answer(root: Path) -> None:
    """Print the reports of LeRobot's loaders as JSON: in a process of its own, started by `ask`."""
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    found: dict[str, Any] = {}
    try:
        from importlib.metadata import version

        import lerobot.datasets.lerobot_dataset  # noqa: F401

        names = ("lerobot", "torch", "accelerate", "torchcodec", "datasets")
        found["versions"] = {name: version(name) for name in names}
        for name, check in zip(NAMES, (check_map, check_streaming, partial(check_streaming, episodes=[1, 2]))):
            report = check(root)
            print(name, report, sep="\n")
            found[name] = report.to_json()
    except (ImportError, RuntimeError, OSError) as error:
        found["missing"] = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(found), file=answers, flush=True)


def ask(python: str, root: Path, folder: Path) -> dict[str, Any]:
    """Run `answer` with `python`, and PyAV's FFmpeg under the names by which torchcodec finds it."""
    found = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('av').origin)"], capture_output=True, text=True
    ).stdout.strip()
    for library in (Path(found).parent.parent / "av.libs").glob("*.so*") if found else []:
        (folder / library.name).symlink_to(library)
        if plain := re.fullmatch(r"(lib(?:av|sw)\w+)-[0-9a-f]+\.so\.(\d+)[.\d]*", library.name):
            (folder / f"{plain[1]}.so.{plain[2]}").symlink_to(library)
    specs = map(importlib.util.find_spec, ("understudy", "understudy_conformance"))
    sources = [str(Path(str(spec.origin)).parents[1]) for spec in specs if spec]
    paths = {
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PYTHONPATH": os.pathsep.join(sources),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder),
        "HF_DATASETS_CACHE": str(folder),
    }
    done = subprocess.run(
        [python, __file__, "--answer", str(root)], env=os.environ | paths, stdout=subprocess.PIPE, text=True
    )
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"missing": f"{python} ended with {done.returncode}"}


def results(report: dict[str, Any] | None) -> dict[str, bool | None] | None:
    """{check: whether it passed, or None where it was not checked}."""
    if report is None:
        return None
    meaning = {"passed": True, "failed": False}
    return {name: meaning.get(check["status"]) for name, check in report["checks"].items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--lerobot", default=sys.executable, metavar="PYTHON", help="interpreter with LeRobot")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer is not None:
        answer(args.answer)
        return
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        root, folder = Path(name) / "set", Path(name) / "libraries"
        folder.mkdir()
        write_set(root)
        ours = check_ours(root)
        show = partial(print, file=sys.stderr) if args.json else print
        show("ours", ours, sep="\n")
        theirs = ask(args.lerobot, root, folder)
    details = {"ours": ours.to_json(), **theirs}
    found = {"ours": results(details["ours"])} | {name: results(theirs.get(name)) for name in NAMES}
    if args.json:
        print(json.dumps(found | {"details": details}))
    else:
        print(json.dumps(found, indent=1), theirs.get("missing") or theirs.get("versions"), sep="\n")


if __name__ == "__main__":
    main()
