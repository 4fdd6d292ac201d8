"""One loader, measured on request in a process of its own. Only the loader "understudy" imports
understudy.

    PYTHON -P rival_loaders.py NAME        NAME is one of LOADERS; PYTHON is an interpreter with its
                                           packages

(-P: no imports from this folder.) The first line of output is {"version"} or {"missing"}. Requests
are lines of JSON, each with one line as answer; a request that fails is answered with {"missing":
reason}:

- {"root", "batch", "chunk", "workers", "seconds"}: shuffled batches with action chunks, after a
  warm-up, and with "step_ms" a sleep after each. Answer: {"samples", "seconds", "cpu_seconds" of
  all processes, "waiting_share", "read_bytes", "first_batch_s", "matches": the delivered samples
  are those of "order", "all_samples" and "all_cpu_seconds" since the dataset was opened}. It stays
  open from request to request.
- {..., "order": N}: the sequence of the first N batches, {"episode": [[...]], "frame": [[...]]},
  without decoding.
- {"convert": root, "out": folder}: makes the copy that the loader reads, {"seconds", "cpu_seconds",
  "bytes"}.

Each loader has its own defaults, with as many worker processes as the request names. Images are
uint8, the default of LeRobot's trainer. torchcodec uses PyAV's FFmpeg where the system has none.
Linux only.
"""

import ctypes.util
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

FOLDER = "UNDERSTUDY_BENCH_FFMPEG"


def lend_ffmpeg(folder: Path) -> None:
    """Restart this script with PyAV's FFmpeg libraries under their plain names, where the system
    has no FFmpeg.
    """
    found = importlib.util.find_spec("av")
    if importlib.util.find_spec("torchcodec") is None or ctypes.util.find_library("avcodec"):
        return
    for library in (
        (Path(str(found.origin)).parent.parent / "av.libs").glob("*.so*") if found else []
    ):
        (folder / library.name).symlink_to(library)
        plain = re.fullmatch(r"(lib(?:av|sw)\w+)-[0-9a-f]+\.so\.(\d+)[.\d]*", library.name)
        if plain:
            (folder / f"{plain[1]}.so.{plain[2]}").symlink_to(library)
    # A process reads library paths at its start, hence the restart.
    paths = {
        "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        FOLDER: str(folder),
    }
    os.execve(sys.executable, [sys.executable, "-P", __file__, *sys.argv[1:]], os.environ | paths)


def process_tree(root: int) -> list[int]:
    """Process `root` and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it ended
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    tree = []
    waiting = [root]
    while waiting:
        tree.append(process := waiting.pop())
        waiting += children.get(process, [])
    return tree


def spent(processes: list[int]) -> tuple[float, int]:
    """User and system seconds of `processes` so far, and the bytes that they read by system
    calls.
    """
    seconds = time.process_time()
    read = 0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            counters = Path(f"/proc/{process}/io").read_text()
        except OSError:  # it ended
            continue
        if process != os.getpid():
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        read += int(counters.split("rchar:")[1].split()[0])
    return seconds, read


def dataset_facts(root: str) -> tuple[dict[str, Any], Any]:
    """The dataset's info.json, and the rows of its episodes in the sequence of their numbers (a
    table of pyarrow).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [
        pq.read_table(path) for path in sorted(Path(root, "meta", "episodes").rglob("*.parquet"))
    ]
    return json.loads(Path(root, "meta", "info.json").read_text()), pa.concat_tables(
        tables
    ).sort_by("episode_index")


class Understudy:
    """Our loader with its defaults."""

    prefetch = 16

    def __init__(self, root: str, batch: int, chunk: int, workers: int) -> None:
        from understudy import Loader

        self.batch = batch
        fps = json.loads(Path(root, "meta", "info.json").read_text())["fps"]
        windows = {"action": [i / fps for i in range(chunk)]}
        self.loader = Loader(root, batch_size=batch, seed=0, delta_timestamps=windows)

    @staticmethod
    def version() -> str:
        from understudy import Loader, __version__  # noqa: F401

        return __version__

    def batches(self) -> Iterator[dict[str, Any]]:
        return iter(self.loader)

    def samples(self, batch: dict[str, Any]) -> tuple[list[int], list[int]]:
        return batch["episode_index"].tolist(), batch["frame_index"].tolist()

    def order(self, batches: int) -> Iterator[tuple[list[int], list[int]]]:
        size = self.batch
        for number in range(batches):
            _, episode, frame = self.loader.order.locate(range(number * size, (number + 1) * size))
            yield episode.tolist(), frame.tolist()

    def close(self) -> None:
        self.loader.close()


class MapStyle:
    """A dataset of LeRobot's interface in torch's DataLoader, with the sampler of LeRobot's
    trainer.
    """

    prefetch = 4
    context = "fork"

    def __init__(self, root: str, batch: int, chunk: int, workers: int) -> None:
        info, episodes = dataset_facts(root)
        self.batch = batch
        self.first = episodes["dataset_from_index"].to_numpy()
        self.last = episodes["dataset_to_index"].to_numpy()
        self.frames = int(self.last[-1])
        self.workers = workers
        self.dataset = self.open(root, {"action": [i / info["fps"] for i in range(chunk)]})
        self.loader = self.load(self.sampler())

    def open(self, root: str, windows: dict[str, list[float]]) -> Any:
        """Open the dataset."""
        raise NotImplementedError

    def sampler(self) -> Any:
        from lerobot.datasets.sampler import EpisodeAwareSampler

        return EpisodeAwareSampler(self.first.tolist(), self.last.tolist(), shuffle=True, seed=0)

    def load(self, sampler: Any) -> Any:
        from torch.utils.data import DataLoader

        kind: dict[str, Any] = {}
        if self.workers:
            kind = {"prefetch_factor": self.prefetch, "persistent_workers": True}
            kind["multiprocessing_context"] = self.context
        return DataLoader(
            self.dataset, batch_size=self.batch, sampler=sampler, num_workers=self.workers, **kind
        )

    def batches(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from self.loader

    def samples(self, batch: dict[str, Any]) -> tuple[list[int], list[int]]:
        return batch["episode_index"].tolist(), batch["frame_index"].tolist()

    def order(self, batches: int) -> Iterator[tuple[list[int], list[int]]]:
        import numpy as np

        frames = iter(self.sampler())
        for _ in range(batches):
            rows = np.fromiter(islice(frames, self.batch), np.int64)
            if len(rows) < self.batch:
                return
            episode = np.searchsorted(self.last, rows, side="right")
            yield episode.tolist(), (rows - self.first[episode]).tolist()

    def close(self) -> None:
        pass


class LeRobot(MapStyle):
    """LeRobot's map-style dataset, as its trainer loads it."""

    backend = "torchcodec"

    @staticmethod
    def version() -> str:
        import av
        from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: F401

        return (
            f"{version('lerobot')} (torch {version('torch')}, torchcodec "
            f"{version('torchcodec')}, av {av.__version__})"
        )

    def open(self, root: str, windows: dict[str, list[float]]) -> Any:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        options = {"video_backend": self.backend, "return_uint8": True}
        return LeRobotDataset("local/bench", root=root, delta_timestamps=windows, **options)


class LeRobotPyAV(LeRobot):
    """The same with PyAV as decoder."""

    backend = "pyav"


class Lance(MapStyle):
    """`LanceDBDataset` over a converted copy on the local disk, as the package's page loads it."""

    # torch's default, and the package's lance_mp_context()
    prefetch = 2
    context = "forkserver"

    @staticmethod
    def version() -> str:
        from lerobot_lancedb import LanceDBDataset  # noqa: F401

        return (
            f"{version('lerobot-lancedb')} (lancedb {version('lancedb')}, torchcodec "
            f"{version('torchcodec')})"
        )

    @staticmethod
    def convert(root: str, out: str) -> None:
        subprocess.check_call(
            [sys.executable, "-m", "lerobot_lancedb.convert", "--root", root, "--out", out],
            stdout=subprocess.DEVNULL,
        )

    def open(self, root: str, windows: dict[str, list[float]]) -> Any:
        from lerobot_lancedb import LanceDBDataset

        return LanceDBDataset(root=root, delta_timestamps=windows, return_uint8=True)


class Blocks(MapStyle):
    """torchcodec's separate demuxer, decoder and converter behind a plain map-style dataset, with
    torch's shuffle.
    """

    prefetch = 2

    @staticmethod
    def version() -> str:
        from torchcodec.decoders import ColorConverter, Demuxer  # noqa: F401

        return f"{version('torchcodec')} (torch {version('torch')})"

    def open(self, root: str, windows: dict[str, list[float]]) -> Any:
        return BlocksDataset(root, len(windows["action"]))

    def sampler(self) -> Any:
        import torch

        return torch.utils.data.RandomSampler(
            range(self.frames), generator=torch.Generator().manual_seed(0)
        )


class BlocksDataset:
    """Map-style dataset: state, actions and one frame of each camera, found by key frame and
    decoded forward.
    """

    def __init__(self, root: str, chunk: int) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        info, episodes = dataset_facts(root)
        rows = pa.concat_tables(
            [pq.read_table(path) for path in sorted(Path(root, "data").rglob("*.parquet"))]
        )
        self.root = root
        self.chunk = chunk
        self.fps = info["fps"]
        self.rows = {
            key: np.stack(rows[key].to_numpy(zero_copy_only=False))
            for key in ("observation.state", "action")
        }
        self.episode, self.frame = rows["episode_index"].to_numpy(), rows["frame_index"].to_numpy()
        self.end = episodes["dataset_to_index"].to_numpy()
        self.videos = {}
        for key in (
            key for key, feature in info["features"].items() if feature["dtype"] == "video"
        ):
            columns = (
                f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")
            )
            self.videos[key] = list(zip(*(episodes[column].to_pylist() for column in columns)))
        self.path = info["video_path"]
        self.readers: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.episode)

    def __getitem__(self, row: int) -> dict[str, Any]:
        import numpy as np

        episode = int(self.episode[row])
        frame = int(self.frame[row])
        actions = np.minimum(np.arange(row, row + self.chunk), self.end[episode] - 1)
        sample = {
            "observation.state": self.rows["observation.state"][row],
            "action": self.rows["action"][actions],
        }
        for key, files in self.videos.items():
            chunk, file, begin = files[episode]
            path = self.path.format(video_key=key, chunk_index=chunk, file_index=file)
            sample[key] = self.image(str(Path(self.root, path)), begin + (frame + 0.5) / self.fps)
        return sample | {"episode_index": episode, "frame_index": frame}

    def image(self, path: str, seconds: float) -> Any:
        """The frame shown at `seconds`, uint8 (3, H, W)."""
        from torchcodec.decoders import ColorConverter, Demuxer

        if path not in self.readers:
            demuxer = Demuxer(path)
            stream = demuxer.streams[0]
            self.readers[path] = demuxer, stream.scan(), stream.make_decoder(), ColorConverter()
        demuxer, index, decoder, converter = self.readers[path]
        target = float(index.pts_seconds[index.index_at(seconds)])
        demuxer.seek(index.key_frame_seconds_for(target))
        decoder.reset()
        for packet in demuxer:
            for raw in decoder.decode(packet):
                if raw.pts_seconds >= target - 1e-6:
                    return converter.convert(raw).data
        for raw in decoder.drain():
            if raw.pts_seconds >= target - 1e-6:
                return converter.convert(raw).data
        raise RuntimeError(f"{path}: no frame at {seconds} s")


LOADERS: dict[str, Any] = {
    "understudy": Understudy,
    "lerobot-pyav": LeRobotPyAV,
    "lerobot-torchcodec": LeRobot,
    "lance": Lance,
    "torchcodec-blocks": Blocks,
}


class Stream:
    """Endless batches of one dataset, their time and their costs."""

    def __init__(self, name: str, **asked: Any) -> None:
        start = time.perf_counter()
        self.cpu = spent(process_tree(os.getpid()))[0]
        self.loader = LOADERS[name](**asked)
        self.taken = 0
        self.queued = self.loader.prefetch * max(1, asked["workers"])
        self.passing = iter(self.loader.batches())
        self.expected = iter(self.loader.order(1 << 30))
        self.matches = True
        self.next()
        self.first_batch_s = time.perf_counter() - start

    def next(self) -> tuple[float, int]:
        """Take a batch and compare its samples with the order; returns the seconds waited and the
        samples.
        """
        asked = time.perf_counter()
        batch = next(self.passing)
        waited = time.perf_counter() - asked
        episode, frame = self.loader.samples(batch)
        expected = next(self.expected, None)  # the order is that of one epoch
        self.matches &= expected is None or expected == (episode, frame)
        if expected is None:
            self.expected = iter(())
        self.taken += len(episode)
        return waited, len(episode)

    def measure(self, seconds: float, step_ms: float = 0, least: int = 4) -> dict[str, Any]:
        # discards batches made before; one that is waited for is the last of them
        for _ in range(self.queued + 1):
            if self.next()[0] > 0.02:
                break
            time.sleep(step_ms / 1000)
        processes = process_tree(os.getpid())
        (cpu, read), start = spent(processes), time.perf_counter()
        samples = 0
        batches = 0
        waited = 0.0
        while time.perf_counter() - start < seconds or batches < least:
            wait, count = self.next()
            time.sleep(step_ms / 1000)
            samples = samples + count
            batches = batches + 1
            waited = waited + wait
        passed = time.perf_counter() - start
        cpu_after, read_after = spent(processes)
        return {
            "samples": samples,
            "seconds": passed,
            "cpu_seconds": cpu_after - cpu,
            "waiting_share": waited / passed,
            "read_bytes": read_after - read,
            "first_batch_s": self.first_batch_s,
            "matches": self.matches,
            "all_samples": self.taken,
            "all_cpu_seconds": cpu_after - self.cpu,
        }


def convert(name: str, root: str, out: str) -> dict[str, Any]:
    """Make the copy of a dataset that a loader reads."""
    making = out + ".making"
    shutil.rmtree(making, ignore_errors=True)
    before = os.times()
    start = time.perf_counter()
    LOADERS[name].convert(root, making)
    seconds = time.perf_counter() - start
    after = os.times()
    Path(making).rename(out)
    size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    return {"seconds": seconds, "cpu_seconds": sum(after[:4]) - sum(before[:4]), "bytes": size}


def answer_requests(name: str, answers: Any) -> None:
    """Print the version, then answer requests until stdin ends."""
    try:
        print(json.dumps({"version": LOADERS[name].version()}), file=answers, flush=True)
    except (ImportError, RuntimeError, OSError) as error:
        print(
            json.dumps({"missing": f"{type(error).__name__}: {error}"[:300]}),
            file=answers,
            flush=True,
        )
        return
    key = ""
    stream = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "convert" in asked:
                answer = convert(name, asked["convert"], asked["out"])
            elif "order" in asked:
                order = asked.pop("order")
                loader = LOADERS[name](**asked)
                batches = list(loader.order(order))
                answer = {"episode": [e for e, _ in batches], "frame": [f for _, f in batches]}
                loader.close()
            else:
                timing = {
                    name: asked.pop(name)
                    for name in ("seconds", "step_ms", "least")
                    if name in asked
                }
                if stream is None or json.dumps(asked) != key:
                    stream = None  # ends its workers
                    key = json.dumps(asked)
                    stream = Stream(name, **asked)
                answer = stream.measure(**timing)
        except Exception as error:  # any error about this dataset: the next one may work
            answer = {"missing": f"{type(error).__name__}: {error}"[-500:]}
            stream = None
        print(json.dumps(answer), file=answers, flush=True)
    if stream is not None:
        stream.loader.close()


def main() -> None:
    warnings.simplefilter("ignore")
    again = os.environ.get(FOLDER)
    folder = Path(again or tempfile.mkdtemp(prefix="bench-loader-"))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = os.environ["HF_DATASETS_CACHE"] = str(folder)
    # output of libraries is no answer
    answers = sys.stdout
    sys.stdout = sys.stderr
    try:
        if not again and sys.argv[1] != "understudy":
            lend_ffmpeg(folder)
        answer_requests(sys.argv[1], answers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
