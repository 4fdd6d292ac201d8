"""Rate of decoding videos from front to back, with which the rate of a loader is compared."""

import itertools
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import numpy as np

from understudy_base import available_cores, processes_here
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.load.images.clip_reader import write


def decode_in_a_row(data: EpisodeArrays, seconds: float) -> float:
    """Return the samples per second of decoding videos from front to back, on this process's share
    of the cores.

    Each thread decodes files of its own, from start to end, and converts the images; 0 for a
    dataset without video.
    """
    catalog = data.catalog
    episodes = catalog.episodes.rows_of(sorted(set(data.segments[:, 0].tolist())))
    cameras = [key for key in data.keys if key in catalog.episodes.videos]
    videos = []
    for camera in cameras:
        first_rows = {int(catalog.videos(camera).file[row]): int(row) for row in reversed(episodes)}
        videos += [(camera, row) for row in sorted(first_rows.values())]
    if not videos:
        return 0.0
    threads = max(1, available_cores() // processes_here())
    ended = threading.Event()

    def decode(number: int) -> int:
        count = 0
        start = number * len(videos) // threads
        for camera, row in itertools.cycle([*videos[start:], *videos[:start]]):
            reader = data.video_frames.reader(camera, row)
            pixels = data.pixels(camera)
            image = pixels.empty(reader.height, reader.width)
            converter = pixels.converter()
            cursor = reader.cursor()
            for frames in cursor.runs(np.arange(reader.count), 16):
                for frame in frames:
                    write(frame, converter, image)
                count += len(frames)
                if ended.is_set():
                    return count
            cursor.park()
        return count

    with ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        try:
            works = [pool.submit(decode, number) for number in range(threads)]
            wait(works, seconds, FIRST_EXCEPTION)
        finally:
            ended.set()
        frames = sum(work.result() for work in works)
        return frames / len(cameras) / (time.perf_counter() - begin)
