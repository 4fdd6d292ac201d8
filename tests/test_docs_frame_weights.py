"""docs/frame_weights.md: its example runs, and its commands are read."""

import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.datasets import Spec, write_dataset
from understudy.cli import main

PAGE = (Path(__file__).parents[1] / "docs/frame_weights.md").read_text()


def test_page_example_has_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "dataset", Spec(lengths=(6, 9, 4), cameras=()))
    [example] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    order, epoch, data = names["order"], names["epoch"], names["data"]
    want = {(e, f): 3 if f < 2 else 1 for e, length in ((0, 6), (2, 4)) for f in range(length)}
    assert epoch == sum(want.values())
    _, episode, frame = order.locate(np.arange(epoch))
    assert Counter(zip(episode.tolist(), frame.tolist())) == want
    assert Counter(zip(*(part.tolist() for part in data.locate(list(names["sampler"]))))) == want
    batch = next(names["loader"])
    names["loader"].close()
    assert list(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist())) == list(zip(episode, frame))[:8]


def test_page_commands_are_read() -> None:
    commands = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
    settings = [main.read_settings(words[1], words[2:]).data for words in map(shlex.split, commands)]
    assert [(each.frame_weights, each.frame_weights_in) for each in settings] == [
        ("weights.parquet", "order"),
        ("quality", "both"),
    ]
