"""Measure LeRobot's map-style dataset in torch's DataLoader, on request. The script imports nothing of understudy.

    PYTHON -P lerobot_loader.py        PYTHON is an interpreter with LeRobot (-P: no imports from this folder)

The first line of output is {"version"} or {"missing"}. For each line {"root", "batch", "chunk", "workers", "seconds"}
of input it prints {"samples", "seconds", "cpu_seconds", "episodes", "waiting_share"} or {"missing"}: shuffled batches
with action chunks, after a warm-up, with the CPU time of all processes. With "step_ms" it sleeps so long after each
batch. A dataset stays open from round to round.

LeRobot runs at its best: forked workers, torchcodec (with PyAV's FFmpeg if the system has none), and uint8 images.
Releases that convert each image to floats (up to 0.4) run without that conversion. Linux only.
"""

import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

FOLDER = "UNDERSTUDY_BENCH_LEROBOT"
DECLARED: list[Any] = []  # keeps the libraries of declared operators alive


def lend_ffmpeg(folder: Path) -> None:
    """Restart this script with PyAV's FFmpeg libraries under their plain names, if torchcodec finds none."""
    try:
        import torchcodec.decoders  # noqa: F401

        return
    except ImportError:
        return
    except (RuntimeError, OSError):
        found = importlib.util.find_spec("av")
    for library in (Path(str(found.origin)).parent.parent / "av.libs").glob("*.so*") if found else []:
        (folder / library.name).symlink_to(library)
        plain = re.fullmatch(r"(lib(?:av|sw)\w+)-[0-9a-f]+\.so\.(\d+)[.\d]*", library.name)
        if plain:
            (folder / f"{plain[1]}.so.{plain[2]}").symlink_to(library)
    # A process reads library paths at its start, hence the restart.
    paths = {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}", FOLDER: str(folder)}
    os.execve(sys.executable, [sys.executable, "-P", __file__], os.environ | paths)


def prepare() -> Any:
    """Import LeRobot's dataset class; raises ImportError or RuntimeError on failure."""
    import torch

    torch.set_num_threads(1)
    try:
        import torchvision  # noqa: F401
    except ImportError:
        pass
    except RuntimeError:  # a CUDA build beside a CPU torch: its Python parts only need these two operators declared
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        DECLARED.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            DECLARED[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets import lerobot_dataset, video_utils

    if "return_uint8" not in inspect.signature(lerobot_dataset.LeRobotDataset.__init__).parameters:
        source = inspect.getsource(video_utils.decode_video_frames_torchcodec)
        uint8 = source.replace("closest_frames = (closest_frames / 255.0).type(torch.float32)", "")
        exec(compile(uint8, video_utils.__file__, "exec"), video_utils.__dict__)
    return lerobot_dataset.LeRobotDataset


def cpu_seconds(processes: list[int]) -> float:
    """User and system time of this process and `processes` so far."""
    total = time.process_time()
    for process in processes:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Stream:
    """Endless batches of one dataset."""

    def __init__(self, dataset_class: Any, root: str, batch: int, chunk: int, workers: int) -> None:
        from lerobot.datasets.sampler import EpisodeAwareSampler
        from torch.utils.data import DataLoader

        with open(os.path.join(root, "meta", "info.json")) as file:
            fps = json.load(file)["fps"]
        options: dict[str, Any] = {"delta_timestamps": {"action": [i / fps for i in range(chunk)]}}
        if "return_uint8" in inspect.signature(dataset_class.__init__).parameters:
            options["return_uint8"] = True
        dataset = dataset_class("local/bench", root=root, **options)
        first, last = (list(dataset.meta.episodes[f"dataset_{end}_index"]) for end in ("from", "to"))
        sampler = EpisodeAwareSampler(first, last, shuffle=True)
        kind: dict[str, Any] = {"multiprocessing_context": "fork", "persistent_workers": True} if workers else {}
        self.loader = DataLoader(
            dataset, batch_size=batch, sampler=sampler, num_workers=workers, drop_last=True, **kind
        )
        self.batch, self.passing = batch, iter(self.loader)

    def next(self) -> dict[str, Any]:
        try:
            return next(self.passing)
        except StopIteration:
            self.passing = iter(self.loader)
            return next(self.passing)

    def measure(self, seconds: float, step_ms: float = 0) -> dict[str, float]:
        workers = [process.pid for process in getattr(self.passing, "_workers", [])]
        for _ in range(2 * len(workers) + 1):  # discards batches prepared between rounds
            self.next()
            time.sleep(step_ms / 1000)
        cpu, start = cpu_seconds(workers), time.perf_counter()
        samples, batches, episodes, waited = 0, 0, 0, 0.0
        while time.perf_counter() - start < seconds or batches < 4:
            asked = time.perf_counter()
            made = self.next()
            waited += time.perf_counter() - asked
            time.sleep(step_ms / 1000)
            samples, batches = samples + self.batch, batches + 1
            episodes += len(set(made["episode_index"].tolist()))
            del made
        spent = time.perf_counter() - start
        cpu = cpu_seconds(workers) - cpu
        return {
            "samples": samples,
            "seconds": spent,
            "cpu_seconds": cpu,
            "episodes": episodes / batches,
            "waiting_share": waited / spent,
        }


def main() -> None:
    warnings.simplefilter("ignore")
    again = os.environ.get(FOLDER)
    folder = Path(again or tempfile.mkdtemp(prefix="bench-lerobot-"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = os.environ["HF_DATASETS_CACHE"] = str(folder)
    try:
        if not again:
            lend_ffmpeg(folder)
        serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve() -> None:
    """Print the version, then answer requests until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries is no answer
    try:
        dataset_class = prepare()
    except (ImportError, RuntimeError, OSError) as error:
        print(json.dumps({"missing": f"{type(error).__name__}: {error}"[:300]}), file=answers, flush=True)
        return
    from importlib.metadata import version

    print(json.dumps({"version": version("lerobot")}), file=answers, flush=True)
    name, stream = "", None
    for line in sys.stdin:
        asked = json.loads(line)
        seconds, step_ms = asked.pop("seconds"), asked.pop("step_ms", 0)
        try:
            if stream is None or json.dumps(asked) != name:
                stream = None  # ends its workers
                name, stream = json.dumps(asked), Stream(dataset_class, **asked)
            answer: dict[str, Any] = stream.measure(seconds, step_ms)
        except Exception as error:  # any error about this dataset: the next one may work
            answer, stream = {"missing": f"{type(error).__name__}: {error}"[:300]}, None
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
