"""Checkpoints on several ranks: any storage to any other, one error on all ranks, nothing torn,
nothing in the way.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy.testing import checkpoint_ranks as ranks
from understudy.testing.ranks import in_ranks
from understudy.train.checkpoint import checkpoint
from understudy_base.testing.refusals import refused


@pytest.mark.long
def test_checkpoint_loads_into_any_storage_on_any_ranks(tmp_path: Path) -> None:
    """Written on 2 ranks, read and written on 3, read on 1: weights, average and moments with
    identical hashes.
    """
    first, second, third = (in_ranks(w, ranks.reshard, tmp_path, w == 3)[0] for w in (2, 3, 1))
    assert first["names"] == second["names"] == third["names"]
    digests = {
        key: told for seen in (first, second, third) for key, told in seen.items() if key != "names"
    }
    assert len(digests) == 3 * 3 + 6
    assert {folder.split(" -> ")[0]: state for folder, (_, state) in digests.items()} == {
        f"{storage}-{world}": f"{storage}-{world}" for storage in ranks.STORAGES for world in (2, 3)
    }
    whole = checkpoint.read_tensors(tmp_path / "split-2/step-00000003")
    expected = ranks.digest({name: ranks.value(name, tensor) for name, tensor in whole.items()})
    assert {key: digest for key, (digest, _) in digests.items() if digest != expected} == {}
    # The shards really are spread: each rank wrote its part.
    assert len(list((tmp_path / "fsdp2-3/step-00000003").glob("*.distcp"))) == 3


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach, as pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="understudy-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_save_failure_is_one_error_on_all_ranks(open_folder: Path) -> None:
    one, two = in_ranks(2, ranks.trouble, open_folder)
    assert set(one) == {
        name + more for name in ranks.TROUBLE for more in ("", " in the background")
    }
    words = {
        "no space on rank 1": "rank 1: OSError: [Errno 27]",
        "no permission": "Permission denied",
        "fsync fails on rank 0": "Input/output error",
        "fsync fails on rank 1": "rank 1: OSError: [Errno 5] Input/output error",
        "rename fails": "No space left",
        "removed by rank 0's writing": "step-00000002.tmp",
        "removed by rank 1's writing": "step-00000002.tmp",
    }
    for name, (error, left, whole) in one.items():
        assert words[name.removesuffix(" in the background")] in error, name
        assert "step-00000002: cannot be saved" in error, name
        assert two[name] == [error, left, whole], name
        assert (left, whole) == ("step-00000001", "True"), name


@pytest.mark.parametrize("lost", ["gone", "torn"])
def test_save_checks_the_files_of_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """As on hosts that do not share a disk: DCP would not notice."""
    plain = checkpoint.publish

    def elsewhere(unfinished: Path, *rest: Any) -> None:
        (shard,) = unfinished.glob("*.distcp")
        shard.unlink() if lost == "gone" else shard.write_bytes(shard.read_bytes()[:-1])
        plain(unfinished, *rest)

    monkeypatch.setattr(checkpoint, "publish", elsewhere)
    with refused("step-00000001", kind=checkpoint.CheckpointError):
        checkpoint.save(tmp_path, 1, {"weights/a": torch.ones(3), "weights/b": torch.ones(3)}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_save_on_a_full_disk(open_folder: Path) -> None:
    """A real one."""
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["unshare", "--mount", "mount", "-t", "tmpfs", "none", open_folder], capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a file system")
    for told in in_ranks(2, ranks.full_disk, open_folder):
        assert told[0] == told[2] == "saved"
        assert "step-00000002: cannot be saved" in told[1]
        assert "No space left on device" in told[1]
        assert told[3:] == ["step-00000001", "step-00000003"]


@pytest.mark.long
def test_saver_in_the_background(tmp_path: Path) -> None:
    for seen in in_ranks(2, ranks.background, tmp_path):
        assert seen == {
            "unfinished": None,
            "first": True,
            "steps": [1, 2],
            "isolated": True,
            "at once": 1,
            "own group": True,
        }


def test_save_needs_agreement_of_ranks(tmp_path: Path) -> None:
    """The negative control of the tests above."""
    one, two = in_ranks(2, ranks.no_agreement, tmp_path)
    assert "No space left" in one
    assert two == "saved"
