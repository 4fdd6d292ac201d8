"""Fixtures of the video tests: videos of every kind, packets fed to decoders, contexts that were
created.
"""

from pathlib import Path

import av
import numpy as np
import pytest

from understudy_data.testing.videos import KINDS, container_decode, write_video
from understudy_data.video import codec_pool
from understudy_data.video.codec_pool import CodecKey
from understudy_data.video.index import PacketRun
from understudy_data.video.packets import Mp4Packets


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """A video of every kind, and its images from a plain container decode. Read-only."""
    folder = tmp_path_factory.mktemp("clips")
    paths = {kind: write_video(folder / f"{kind}.mp4", kind) for kind in KINDS}
    return {kind: (path, container_decode(path)) for kind, path in paths.items()}


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Decode positions of all packets fed to decoders."""
    seen: list[int] = []
    one = Mp4Packets.packet
    run = Mp4Packets.run

    def feed(self: Mp4Packets, i: int, read_limit: int) -> av.Packet:
        seen.append(i)
        return one(self, i, read_limit)

    def feed_run(self: Mp4Packets, first: int, stop: int, read_limit: int) -> PacketRun:
        found = run(self, first, stop, read_limit)
        seen.extend(range(first, first + found.stop - found.first))
        return found

    monkeypatch.setattr(Mp4Packets, "packet", feed)
    monkeypatch.setattr(Mp4Packets, "run", feed_run)
    return seen


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[CodecKey]:
    """Keys of all codec contexts that are created. This thread begins without spare ones."""
    seen: list[CodecKey] = []
    create = codec_pool.create_context

    def record(key: CodecKey, where: str) -> av.VideoCodecContext:
        seen.append(key)
        return create(key, where)

    monkeypatch.setattr(codec_pool, "create_context", record)
    codec_pool.spare.contexts.clear()
    return seen
