"""Counts of samples of which a policy could not keep everything."""

from types import SimpleNamespace
from typing import Any

import torch

from understudy.train.loop import CutSamples, count_cuts


class TwoRanks:
    """A mesh of two ranks; the other one has the same counts, but one cut prompt in each step."""

    def __init__(self) -> None:
        self.calls = 0

    def gather(self, counts: list[dict[str, int]]) -> list[Any]:
        self.calls += 1
        return [counts, [{**own, "prompt": 1} for own in counts]]


def test_count_cuts_counts_the_marks_alone() -> None:
    batch = {
        "prompt_is_cut": torch.tensor([True, False, True]),
        "prompt_is_pad": torch.ones(3),
        "task": ["a"] * 3,
    }
    assert count_cuts(batch) == {"prompt": 2}
    assert count_cuts({"task": ["a"]}) == {}


def test_counts_are_summed_over_ranks_and_printed_once() -> None:
    mesh = TwoRanks()
    lines = list[str]()
    cuts = CutSamples(mesh, 8, lines.append)  # type: ignore[arg-type]
    assert cuts.add([1, 2], [{"prompt": 0, "response": 0}, {"prompt": 3, "response": 0}]) == [
        {"prompt": 1, "response": 0},
        {"prompt": 4, "response": 0},
    ]
    assert cuts.add([3], [{"prompt": 0, "response": 2}]) == [{"prompt": 1, "response": 4}]
    assert mesh.calls == 2
    assert [line.split(":")[0] for line in lines] == ["step 1", "step 3"]
    cuts.summarize()
    assert [line.split(" ")[0] for line in lines[2:]] == ["25.00%", "16.67%"]


def test_a_policy_without_texts_costs_no_exchange() -> None:
    mesh = TwoRanks()
    lines = list[str]()
    cuts = CutSamples(mesh, 8, lines.append)  # type: ignore[arg-type]
    assert cuts.add([1, 2], [{}, {}]) == [{}, {}]
    cuts.summarize()
    assert (mesh.calls, lines) == (0, [])


def test_a_cut_range_is_no_cut_end() -> None:
    messages = {}
    for name in ("prompt", "action_range"):
        lines: list[str] = []
        alone = SimpleNamespace(gather=lambda counts: [counts])
        cuts = CutSamples(alone, 8, lines.append)  # type: ignore[arg-type]
        cuts.add([1], [{name: 2}])
        messages[name] = lines[0].replace(name.replace("_", " "), "")
    assert messages["prompt"] != messages["action_range"]
