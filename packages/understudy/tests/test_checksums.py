"""A folder with checksums is read as it was written, or not at all."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import understudy as us
from understudy.testing.policies import policy
from understudy_base.testing.refusals import refused
from understudy_data.checksums import (
    FILE,
    ChecksumError,
    check_checksums,
    file_sha256,
    write_checksums,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy with a contract."""
    target = tmp_path_factory.mktemp("saved") / "policy"
    policy().save(target, metadata={"contract": {"version": 1, "robots": {}}})
    return target


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "normalisation.json", "contract.json", FILE]
)
def test_each_flipped_bit_is_refused(folder: Path, name: str) -> None:
    path = folder / name
    draw = random.Random(name)
    sound = path.read_bytes()
    try:
        for _ in range(25):
            bit = draw.randrange(len(sound) * 8)
            damaged = bytearray(sound)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            with pytest.raises(ChecksumError) as caught:
                us.load_policy(folder, contract="off")
            assert name == FILE or (caught.value.path, caught.value.expected) == (
                path,
                _sum(folder, name),
            )
            assert name == FILE or caught.value.actual == file_sha256(path) != caught.value.expected
    finally:
        path.write_bytes(sound)
    us.load_policy(folder, contract="off")


def _sum(folder: Path, name: str) -> str:
    lines = [line.split("  ") for line in (folder / FILE).read_text().splitlines()]
    return next(digest for digest, own in lines if own == name)


def test_edited_card_stops_no_robot_and_another_file_is_accepted_on_request(tmp_path: Path) -> None:
    policy().save(tmp_path / "p")
    (tmp_path / "p" / "README.md").write_text("mine")
    us.load_policy(tmp_path / "p")
    config = tmp_path / "p" / "config.json"
    config.write_text(config.read_text() + "\n")
    with refused(config, FILE, kind=ChecksumError):
        us.load_policy(tmp_path / "p")
    sums = tmp_path / "p" / FILE
    sums.write_text(
        "".join(line for line in sums.read_text().splitlines(True) if "config.json" not in line)
    )
    us.load_policy(tmp_path / "p")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("part/b", "../b"),
        lambda text: text.replace("part/b", "/etc/hostname"),
        lambda text: text.rstrip("\n"),
        lambda text: text + "mine\n",
    ],
)
def test_damaged_list_is_refused(tmp_path: Path, damage: Callable[[str], str]) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "b").write_text("b")
    write_checksums(tmp_path)
    check_checksums(tmp_path)
    (tmp_path / FILE).write_text(damage((tmp_path / FILE).read_text()))
    with pytest.raises(ChecksumError) as caught:
        check_checksums(tmp_path)
    assert (caught.value.path, caught.value.expected) == (tmp_path / FILE, "")


def test_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    write_checksums(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(ChecksumError) as caught:
        check_checksums(tmp_path)
    assert (caught.value.path, caught.value.actual) == (tmp_path / "a", "")
