"""Reading of safetensors files row by row: single and sharded ones, damage, and the memory that it
takes.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from understudy.policies.weight_files import FILE, INDEX, WeightFiles
from understudy_base.testing.refusals import refused

TENSORS = {
    "a.weight": torch.randn(7, 3),
    "b.bias": torch.randn(5).bfloat16(),
    "c": torch.tensor(2.5, dtype=torch.float64),
    "d": torch.randn(4, 2, 3).half(),
}


def sharded(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """A folder with one file for each tensor, and their index."""
    weight_map = {
        key: f"model-{i:05}-of-{len(tensors):05}.safetensors" for i, key in enumerate(tensors)
    }
    for key, name in weight_map.items():
        save_file({key: tensors[key]}, folder / name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def single(folder: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, folder / FILE)
    return folder


@pytest.mark.parametrize("write", [single, sharded])
def test_weight_files_read_any_rows_in_the_files_dtype(  # type: ignore[no-untyped-def]
    tmp_path: Path, write
) -> None:
    files = WeightFiles(write(tmp_path, TENSORS))
    assert files.shapes == {key: tuple(tensor.shape) for key, tensor in TENSORS.items()}
    assert files.dtypes == {key: tensor.dtype for key, tensor in TENSORS.items()}
    for key, tensor in TENSORS.items():
        assert torch.equal(files.read(key), tensor)
        for start, stop in ((0, 2), (1, 4), (2, 2), (3, 99)) if tensor.ndim else ():
            part = files.read(key, start, stop)
            assert part.dtype == tensor.dtype
            assert torch.equal(part, tensor[start:stop])
    with pytest.raises(KeyError):
        files.read("e")


def test_weight_files_accept_the_file_itself(tmp_path: Path) -> None:
    assert WeightFiles(single(tmp_path, TENSORS) / FILE).shapes.keys() == TENSORS.keys()
    other = tmp_path / "sharded"
    other.mkdir()
    assert WeightFiles(sharded(other, TENSORS) / INDEX).shapes.keys() == TENSORS.keys()


def test_weight_files_name_a_missing_or_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    for path in (tmp_path, tmp_path / "pytorch_model.bin", tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError):
            WeightFiles(path)
    single(tmp_path, TENSORS)
    whole = (tmp_path / FILE).read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"\xff" * 64):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(ValueError, match=FILE):
            WeightFiles(tmp_path)


def test_weight_files_name_damage_of_shards(tmp_path: Path) -> None:
    sharded(tmp_path, TENSORS)
    names = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    whole = (tmp_path / names["d"]).read_bytes()
    (tmp_path / names["d"]).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=names["d"]):
        WeightFiles(tmp_path)
    save_file({"d": TENSORS["d"], "a.weight": TENSORS["a.weight"]}, tmp_path / names["d"])
    with pytest.raises(ValueError, match=r"a\.weight"):
        WeightFiles(tmp_path)
    (tmp_path / names["d"]).write_bytes(whole)
    single(tmp_path, TENSORS)
    with refused(FILE, INDEX, kind=ValueError):
        WeightFiles(tmp_path)


@pytest.mark.parametrize("write", [single, sharded])
def test_weight_files_never_mix_two_checkpoints(  # type: ignore[no-untyped-def]
    tmp_path: Path, write
) -> None:
    """A folder that is replaced between two reads, as `export` does, and a file that is written
    over.
    """
    for name, tensors in (
        ("a", TENSORS),
        ("b", {key: tensor + 1 for key, tensor in TENSORS.items()}),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name, tensors)
    files = WeightFiles(tmp_path / "a")
    digest = files.digest()
    assert torch.equal(files.read("a.weight", 0, 2), TENSORS["a.weight"][:2])
    (tmp_path / "a").rename(tmp_path / "old")
    (tmp_path / "b").rename(tmp_path / "a")
    for read in (
        lambda: files.read("a.weight", 2, 4),
        lambda: files.copy_into("c", torch.ones(())),
        files.digest,
    ):
        with refused(tmp_path / "a", kind=ValueError):
            read()
    assert WeightFiles(tmp_path / "a").digest() != digest == WeightFiles(tmp_path / "old").digest()
    files = WeightFiles(tmp_path / "old")
    for path in (tmp_path / "old").glob("*.safetensors"):
        path.write_bytes(path.read_bytes())
    with refused(tmp_path / "old", kind=ValueError):
        files.read("d")


def test_weight_files_never_read_pickles(tmp_path: Path) -> None:
    """A pickle is named by its own kind of file, in a folder and in an index, and stays unread."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin"):
        WeightFiles(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        WeightFiles(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_weight_files_refuse_values_that_are_not_finite(
    tmp_path: Path, dtype: torch.dtype, bad: float
) -> None:
    tensor = torch.zeros(5, 3, dtype=dtype)
    tensor[3, 1] = bad
    files = WeightFiles(single(tmp_path, {"a.weight": tensor}))
    assert files.read("a.weight", 0, 3).shape == (3, 3)
    with pytest.raises(ValueError, match=r"a\.weight"):
        files.read("a.weight", 3, 4)


def test_weight_files_refuse_integers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="I64"):
        WeightFiles(single(tmp_path, {"count": torch.arange(3)}))


def test_weight_files_check_the_index(tmp_path: Path) -> None:
    sharded(tmp_path, TENSORS)
    index = json.loads((tmp_path / INDEX).read_text())

    def written(weight_map: object) -> Path:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        return tmp_path

    names = index["weight_map"]
    with pytest.raises(ValueError, match="lost"):
        WeightFiles(written({**names, "lost": names["c"]}))
    with pytest.raises(FileNotFoundError, match="other"):
        WeightFiles(written({**names, "c": "other.safetensors"}))
    save_file(TENSORS, tmp_path.parent / "outside.safetensors")
    for outside in ("../outside.safetensors", str(tmp_path.parent / "outside.safetensors")):
        with pytest.raises(FileNotFoundError, match="outside"):
            WeightFiles(written({**names, "c": outside}))
    with refused("d", names["d"], kind=ValueError):
        WeightFiles(
            written({key: name for key, name in names.items() if key != "d"} | {"c": names["d"]})
        )
    (tmp_path / INDEX).write_text("[" * 99999)
    with pytest.raises(ValueError, match=INDEX):
        WeightFiles(tmp_path)
    for broken in ([], None, {"c": 3}):
        with pytest.raises((ValueError, FileNotFoundError)):
            WeightFiles(written(broken))
