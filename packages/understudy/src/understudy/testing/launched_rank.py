"""One rank of a launcher: README's own loop, then the same epoch by a DataLoader:
`launched_rank.py ROOT OUT [group]`.

Writes the frames that each of them read to OUT.RANK. With `group` an Accelerator is made first,
which joins the ranks.
"""

import json
import os
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

import understudy as us

BATCH = 32


def main(root: str, out: str, joins: bool) -> None:
    accelerator: Any = None
    if joins:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
    steps = len(us.EpisodeDataset(root)) // BATCH
    stream = us.EpisodeStream(root, batch_size=BATCH, seed=0)
    streamed = islice(DataLoader(stream, batch_size=None, num_workers=2), steps)
    of_readme = read_readme(root, steps, accelerator)
    of_stream: list[list[int]] = []
    for batch in streamed:
        of_stream += frames_of(batch)
    seen = {"readme": of_readme, "stream": of_stream}
    Path(f"{out}.{os.environ['RANK']}").write_text(json.dumps(seen))
    if accelerator is not None:
        accelerator.end_training()


def read_readme(root: str, steps: int, accelerator: Any) -> list[list[int]]:
    """Frames that the code of README's own loop reads, with another path and number of steps."""
    seen: list[list[int]] = []

    class Recorded(us.Loader):
        def __iter__(self) -> Any:
            return super().__iter__() if accelerator is None else accelerator.prepare(self)

        def __next__(self) -> dict[str, Any]:
            batch = super().__next__()
            seen.extend(frames_of(batch))
            return batch

    text = (Path(__file__).parents[5] / "README.md").read_text()
    [code] = [
        block
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if "us.Loader(" in block
    ]
    assert code.count('"data/first"') == code.count("range(100)") == 1
    us.Loader = Recorded  # type: ignore[misc]
    exec(
        code.replace('"data/first"', repr(root)).replace("range(100)", f"range({steps})"),
        {"us": us},
    )
    us.Loader = Recorded.__mro__[1]  # type: ignore[misc]
    return seen


def frames_of(batch: dict[str, Any]) -> list[list[int]]:
    episodes = batch["episode_index"]
    frames = batch["frame_index"]
    return list(zip(episodes.tolist(), frames.tolist()))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["group"])
