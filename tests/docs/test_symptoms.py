"""The commands of docs/symptoms.md run as written, and print the lines that the page shows.

`data/table`, the runs, the settings and the orders of the page are small ones. Commands that need a
bucket or a GPU are parsed by the program.
"""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("mujoco", reason="the recording needs the extra demo")

from support.command_lines import command_faults
from understudy.testing.docs import ROOT, blocks, run_python
from understudy_kit.cli import main

PAGE = ROOT / "docs/symptoms.md"
ELSEWHERE = ("s3://", "libero")
"""Words of commands that need a bucket, or the simulator of LIBERO and a GPU."""
NUMBER = r"[-+]?\d[\d,.]*"
TINY = """
steps: 2
batch_size: 8
policy: {type: flow, image_size: [16, 16], width: 16, layers: 1, channels: 8, blocks: 1}
val: {every: 2}
log: {report: false}
data: {val_fraction: 0.5, sources: [{root: data/table}, {root: data/red}]}
"""


def steps() -> list[tuple[str, list[str]]]:
    """Commands of the page, each with the lines that follow it as comments."""
    found: list[tuple[str, list[str]]] = []
    for language, block in blocks(PAGE.read_text()):
        lines = block.splitlines() if language == "sh" else []
        for line in lines:
            if line.startswith("# "):
                found[-1][1].append(line[2:])
            else:
                found += [(command.partition(" # ")[0], []) for command in line.split(" && ")]
    return found


def as_pattern(line: str) -> str:
    """A printed line with any other numbers, any spaces, and any words in place of `…`."""
    parts = [re.split(NUMBER, " ".join(part.split())) for part in line.split("…")]
    return ".*".join(NUMBER.join(map(re.escape, words)) for words in parts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main.main(["record", "--output-dir", "data/table", "--episodes", "12"]) == 0
    assert main.main(["record", "--output-dir", "data/red", "--episodes", "4"]) == 0
    Path("mixture.yaml").write_text(TINY)
    Path("settings.yaml").write_text(TINY.replace(", {root: data/red}", ""))
    for words in (
        ["mixture.yaml", "--output-dir", "runs/even"],
        ["mixture.yaml", "--output-dir", "runs/more", "--optim.lr", "0.01"],
        ["settings.yaml", "--output-dir", "runs/table"],
    ):
        assert main.main(["train", *words]) == 0
    words = ["order", "export", "data/table", "samples.parquet", "--batch-size", "64"]
    assert main.main(words) == 0
    rows = pq.read_table("samples.parquet").select(["episode", "frame"])
    rows = rows.replace_schema_metadata(None)
    by_place = [("episode", "ascending"), ("frame", "ascending")]
    pq.write_table(rows.sort_by(by_place), "order.parquet")
    pq.write_table(pa.concat_tables([rows[:64], rows[:64]]), "resumed.parquet")
    return tmp_path


def run(command: str) -> None:
    """Run a command of the page, or read it where it needs another machine."""
    words = shlex.split(command)
    assert words[0] == "understudy"
    if any(word in command for word in ELSEWHERE):
        assert list(command_faults(words, ROOT, whole=True)) == []
    else:
        assert main.main(words[1:]) == 0, command


@pytest.mark.timeout(600)
def test_commands_print_the_lines_of_the_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(steps()) >= 12
    missing = []
    for command, lines in steps():
        capsys.readouterr()
        run(command)
        captured = capsys.readouterr()
        printed = " ".join((captured.out + captured.err).split())
        missing += [line for line in lines if not re.search(as_pattern(line), printed)]
    assert missing == []


def test_code_counts_the_weights_that_a_bfloat16_step_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of 2.5e-5 on weights near 0.06, as stored in bfloat16 and in float32."""
    monkeypatch.chdir(tmp_path)
    weight = 0.06 * torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    shares = []
    for stored in (torch.bfloat16, torch.float32):
        base = weight.to(stored)
        for name, value in (("base", base), ("tuned", base - 2.5e-5)):
            Path(name).mkdir(exist_ok=True)
            save_file({"weight": value.to(stored)}, f"{name}/model.safetensors")
        run_python(PAGE, {})
        (share,) = re.findall(r"(\d+)% of the weights moved", capsys.readouterr().out)
        shares.append(int(share))
    assert shares[0] < 30
    assert shares[1] > 95


def test_page_is_short() -> None:
    assert len(PAGE.read_text().splitlines()) <= 120
    headings = re.findall(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    assert len(headings) == 9
    assert PAGE.read_text().count("**Remedy.**") == len(headings)
    assert PAGE.read_text().count("**Afterwards**") == len(headings)
