"""Several instructions of an episode in a run: each sample trains on one of them, on any ranks and after a resume."""

from dataclasses import replace
from pathlib import Path

import pytest

from support import resumed
from support.ranks import in_ranks
from support.runs import same_run, tiny_config
from understudy.config.train import TrainConfig
from understudy.contract.facts import read_contract
from understudy.load.validation_data import ValidationData
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import instructions, longest_prompts, open_data
from understudy.train.startup_summary import startup_summary
from understudy.train.validation.validation_loss import read_validation_data

SEPARATOR = " the "
"""Of "lift the red block" one sample gets "lift", another one "red block"."""


def config_of(data: Path, out: Path, separator: str = SEPARATOR) -> TrainConfig:
    config = tiny_config(data, out, micro_batch_size=2)
    return replace(config, augment=replace(config.augment, task_separator=separator))


def read_all(held: ValidationData | None, size: int) -> list[str]:
    """Texts of all validation frames, read in batches of `size`."""
    assert held is not None
    batches = [held.read(slice(low, min(low + size, len(held)))) for low in range(0, len(held), size)]
    return [text for batch in batches for text in batch["task"]]


def test_validation_frames_get_one_instruction_each_in_any_batch(data: Path) -> None:
    config = config_of(data, data.parent / "out")
    opened = open_data(config)
    parts = instructions(opened.training, SEPARATOR)
    texts = read_all(read_validation_data(config, opened), 64)
    assert len(parts) > 2
    assert set(texts) <= parts
    assert len(set(texts)) > 2
    assert read_all(read_validation_data(config, opened), 5) == texts
    joined = read_all(read_validation_data(config_of(data, data.parent / "out", ""), opened), 64)
    assert set(joined) <= set(opened.training[0].catalog.tasks)
    assert all(text in whole for text, whole in zip(texts, joined, strict=True))
    assert max(map(len, longest_prompts(opened.training, SEPARATOR))) == max(map(len, parts))


def test_start_says_how_many_texts_the_separator_divides(data: Path) -> None:
    def lines(separator: str) -> list[str]:
        config = config_of(data, data.parent / "out", separator)
        opened = open_data(config)
        summary = startup_summary(config, opened, opened.order(config))
        return [line for line in summary if line.startswith("augment.task_separator")]

    assert not lines("")
    assert ["2 of 3 task texts" in line for line in lines(SEPARATOR)] == [True]  # "wait" is one instruction
    assert ["0 of 3 task texts" in line for line in lines(" || ")] == [True]


def resume_on_rank(out: Path) -> int:
    return run.resume(RunDir(out).settings())


def test_a_run_resumed_on_other_ranks_draws_the_same_instructions(data: Path, tmp_path: Path) -> None:
    whole, joined = config_of(data, tmp_path / "whole"), config_of(data, tmp_path / "joined", "")
    assert run.train(whole) == run.train(joined) == run.DONE
    with resumed.watched(tmp_path / "stopped", {5: resumed.send(15)}):
        assert run.train(config_of(data, tmp_path / "stopped")) == run.STOPPED
    assert in_ranks(2, resume_on_rank, tmp_path / "stopped") == [run.DONE, run.DONE]
    same_run(tmp_path / "whole", tmp_path / "stopped")
    with pytest.raises(AssertionError):
        same_run(tmp_path / "whole", tmp_path / "joined")
    contract = read_contract(tmp_path / "whole/policy")
    assert contract is not None
    [facts] = contract.robots.values()
    assert set(facts.tasks) == {*instructions(open_data(whole).training, SEPARATOR), ""}
