"""What several tests of the data share: videos of every kind, and which packets a decoder is given."""

from pathlib import Path

import av
import numpy as np
import pytest

from support.videos import KINDS, container_decode, write_video
from understudy.video.native.loops import Coded
from understudy.video.packets import Mp4Packets


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, np.ndarray]]:
    """A video of every kind, and its pictures by the plain container decode. Only to be read."""
    folder = tmp_path_factory.mktemp("clips")
    paths = {kind: write_video(folder / f"{kind}.mp4", kind) for kind in KINDS}
    return {kind: (path, container_decode(path)) for kind, path in paths.items()}


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The decode positions of all packets given to decoders."""
    seen: list[int] = []
    one, several = Mp4Packets.packet, Mp4Packets.several

    def packet(self: Mp4Packets, i: int, until: int) -> av.Packet:
        seen.append(i)
        return one(self, i, until)

    def packets(self: Mp4Packets, first: int, stop: int, until: int) -> Coded:
        coded = several(self, first, stop, until)
        seen.extend(range(first, first + coded.stop - coded.first))
        return coded

    monkeypatch.setattr(Mp4Packets, "packet", packet)
    monkeypatch.setattr(Mp4Packets, "several", packets)
    return seen
