"""Data that grow: a run holds its episodes, and `--data.update` adds appended ones from a
checkpoint on.
"""

import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy import Loader, Order
from understudy.config.train import TrainConfig
from understudy.report.audit_page import audit_page, audit_text
from understudy.testing.audited import recorded, send, trained
from understudy.testing.ranks import in_ranks
from understudy.testing.runs import final_tensors, same_run, series, tiny_config
from understudy.train import run
from understudy.train.account import Account
from understudy.train.audit import audit_run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.selection.select import split_episodes
from understudy_data.testing.datasets import Spec, edit_column, rate_episodes, write_dataset
from understudy_kit import main, override

LENGTHS = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12, 10, 7, 9, 8, 6, 11, 5, 9, 7, 8)
OLD = 10
MORE = 16
ALL = 20
SECOND = slice(OLD, MORE)


def write(root: Path, episodes: int) -> Path:
    """The first episodes, in files of two: more episodes change tables and add files. They replace
    earlier ones.
    """
    shutil.rmtree(root, ignore_errors=True)
    write_dataset(root, Spec(lengths=LENGTHS[:episodes], gop=4))
    return root


def grow(root: Path, episodes: int) -> None:
    """Add episodes as a recorder does: new files first, then those of meta/; no other file is
    written again.
    """
    larger = write(root.with_name(f"{root.name}-larger"), episodes)
    for path in sorted(larger.rglob("*"), key=lambda path: "meta" in path.parts):
        place = root / path.relative_to(larger)
        if path.is_file() and ("meta" in path.parts or not place.exists()):
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def settings(root: Path, out: Path, **changes: Any) -> TrainConfig:
    return tiny_config(
        root, out, **{"val": {"every": 12}, "checkpoint": {"keep_last": 9}, **changes}
    )


def resumed(
    out: Path, session: int, update: bool, at: dict[int, Callable[[], object]] | None = None
) -> int:
    config = RunDir(out).settings()
    with recorded(out, session, at or {}):
        return run.resume(replace(config, data=replace(config.data, update=update)))


def copied(source: Path, out: Path) -> Path:
    shutil.copytree(source, out)
    shutil.copytree(
        source.with_name(source.name + ".samples"), out.with_name(out.name + ".samples")
    )
    return out


def used(out: Path, until: int = 12) -> set[int]:
    return {episode for _, episode, _ in trained(out, until)[0]}


def new_training(first: int, last: int) -> set[int]:
    return set(split_episodes(range(first, last), 0.3, appended=True)[0].tolist())


class Died(BaseException):
    """The end of a process, at any point."""


def die() -> None:
    raise Died


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`held` never saw a longer dataset; `begun` was stopped at step 4; `grown` took the new
    episodes there.
    """
    root = tmp_path_factory.mktemp("updates")
    with recorded(root / "held", 0, {}):
        assert run.train(settings(write(root / "data", OLD), root / "held")) == run.DONE
    with recorded(root / "begun", 0, {4: send(signal.SIGTERM)}):
        assert run.train(settings(root / "data", root / "begun")) == run.STOPPED
    write(root / "data", MORE)
    copied(root / "begun", root / "grown")
    assert resumed(root / "grown", 1, True) == run.DONE
    return root


def test_run_holds_its_episodes_while_the_dataset_grows(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "begun", tmp_path / "r")
    assert resumed(out, 1, False) == run.DONE
    same_run(folder / "held", out)
    assert main(["validate", str(out)]) == 0


def test_update_adds_episodes_and_leaves_the_past(folder: Path) -> None:
    held, grown = (Account.open(folder / name, "latest") for name in ("held", "grown"))
    assert [(of.step, of.position) for of in grown.spans] == [(0, 0), (4, 16)]
    before = np.arange(16)
    assert np.array_equal(held.order.locate(before), grown.order.locate(before))
    assert series(folder / "held")[:4] == series(folder / "grown")[:4]
    assert used(folder / "grown", 4) <= set(range(OLD))
    ahead = grown.order.locate(np.arange(16, 5000))[1]
    reserved = set(range(OLD, MORE)) - new_training(OLD, MORE)
    assert reserved
    old = held.frames["rows"][held.frames["part"] == 0, 0]
    assert set(ahead.tolist()) == {*old.tolist(), *new_training(OLD, MORE)}
    facts = [
        json.loads((folder / name / "policy/normalisation.json").read_text())
        for name in ("held", "grown")
    ]
    assert facts[0] == facts[1]
    assert not RunDir(folder / "grown").settings().data.update
    groups = [
        [(of["source"], of["task"]) for of in series(folder / n, "val")[-1]["groups"]]
        for n in ("held", "grown")
    ]
    assert groups[0] == groups[1]


def test_every_part_is_exact_once_per_own_epoch(folder: Path) -> None:
    """The running epoch of the old frames continues to its end; shares are those of the frames."""
    order = Account.open(folder / "grown", "latest").order
    positions = np.arange(16 + 40 * sum(LENGTHS))
    source, epoch = order.epochs(positions)
    located = np.stack(order.locate(positions), axis=1)
    for number, spec in enumerate(order.spec.sources):
        last = int(epoch[source == number].max())
        for e in range(last):
            rows = located[(source == number) & (epoch == e)]
            assert len(rows) == len(np.unique(rows, axis=0)) == spec.frames
    frames = np.array([spec.frames for spec in order.spec.sources])
    slots = np.array(order.spec.schedule[-1].slots)
    assert slots / slots.sum() == pytest.approx(frames / frames.sum(), rel=0.02)


def test_account_and_order_file_say_the_truth(folder: Path, tmp_path: Path) -> None:
    out = folder / "grown"
    record = Counter({(0, e, f): n for (_, e, f), n in trained(out, 12)[0].items()})
    result, counts = audit_run(out, "latest", [str(min(used(out) - set(range(OLD))))])
    table = {
        (e, f): n
        for block in counts.frames()
        for e, f, n in zip(
            block["episode"].tolist(), block["frame"].tolist(), block["samples"].tolist()
        )
        if n
    }
    assert table == {(e, f): n for (_, e, f), n in record.items()}
    assert list(result["sources"]) == ["data"]
    assert result["updates"] == [[4, "data", OLD, MORE - 1]]
    heads = [line.split() for line in audit_text(result).splitlines()]
    assert ["4", "data", str(OLD), str(MORE - 1)] in heads
    assert "Episodes appended" in audit_page(result)
    assert result["validation"]["samples"] == 0
    assert result["validation"]["episodes"] + result["sources"]["data"]["episodes"] == MORE
    assert result["without"]["first"]["step"] > 4
    assert not result["without"]["in_statistics"]
    assert audit_run(out, 4, ())[0]["updates"] == []
    assert main(["order", "export", str(out), str(tmp_path / "o.parquet")]) == 0
    rows = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert Counter((0, row["episode"], row["frame"]) for row in rows) == record
    with Loader(
        write(tmp_path / "data", ALL), order=Order.from_file(tmp_path / "o.parquet")
    ) as loader:
        played = [
            pair
            for b in loader
            for pair in zip(b["episode_index"].tolist(), b["frame_index"].tolist())
        ]
    assert played == [(row["episode"], row["frame"]) for row in rows]


def test_death_before_the_next_checkpoint_undoes_the_update(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "begun", tmp_path / "r")
    with pytest.raises(Died):
        resumed(out, 1, True, {6: die})
    again = copied(out, tmp_path / "again")
    assert resumed(out, 2, False) == run.DONE
    same_run(folder / "held", out)
    assert used(out) <= set(range(OLD))
    with pytest.raises(Died):
        resumed(again, 2, True, {10: die})  # behind the checkpoint of step 8
    assert resumed(again, 3, False) == run.DONE
    same_run(folder / "grown", again)


def test_two_updates_and_a_rewind(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "begun", tmp_path / "r")
    root = folder / "data"
    try:
        assert resumed(out, 1, True, {7: send(signal.SIGTERM)}) == run.STOPPED
        write(root, ALL)
        assert resumed(out, 2, True) == run.DONE
        account = Account.open(out, "latest")
        assert [source.name for source in account.order.spec.sources] == [
            "data",
            "data@4",
            "data@7",
        ]
        ahead = set(account.order.locate(np.arange(28, 9000))[1].tolist())
        assert ahead >= new_training(OLD, MORE) | new_training(MORE, ALL)
        assert audit_run(out, "latest", ())[0]["samples"] == 48
        for step in checkpoint.list_steps(out / "checkpoints"):
            if step > 4:
                shutil.rmtree(out / f"checkpoints/step-{step:08d}")
        assert resumed(out, 3, False) == run.DONE
        assert final_tensors(out).keys() == final_tensors(folder / "held").keys()
        same_run(folder / "held", out)
    finally:
        write(root, MORE)


def on_ranks(out: Path, session: int) -> int:
    return resumed(out, session, True)


@pytest.mark.long
def test_update_on_two_ranks_is_the_same(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "begun", tmp_path / "r")
    assert in_ranks(2, on_ranks, out, 1) == [run.DONE] * 2
    assert trained(out, 12) == trained(folder / "grown", 12)
    assert (
        Account.open(out, "latest").order.spec
        == Account.open(folder / "grown", "latest").order.spec
    )


def opens_late(root: Path, out: Path) -> int:
    """Train; the dataset grows between the openings of rank 0 and rank 1."""
    plain = run.open_data
    marker = out.with_name("opened")
    rank = int(os.environ["RANK"])
    opened = []

    def open_data(*arguments: Any) -> Any:
        while rank == 1 and not opened and not marker.exists():
            time.sleep(0.01)
        if rank == 1 and not opened:
            grow(root, MORE)
        opened.append(plain(*arguments))
        marker.touch()
        return opened[-1]

    run.open_data = open_data
    with recorded(out, 0, {}):
        return run.train(settings(root, out))


@pytest.mark.long
def test_all_ranks_have_the_episodes_of_rank_0(folder: Path, tmp_path: Path) -> None:
    root = write(tmp_path / "data", OLD)
    out = tmp_path / "r"
    assert in_ranks(2, opens_late, root, out) == [run.DONE] * 2
    assert RunDir(out).read_record()["sources"][0]["last"] == OLD - 1
    assert trained(out, 12) == trained(folder / "held", 12)


def test_changed_episodes_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "grown", tmp_path / "r")
    config = replace(RunDir(out).settings(), steps=14)
    root = tmp_path / "data"

    def at(spec: Spec) -> TrainConfig:
        shutil.rmtree(root, ignore_errors=True)
        write_dataset(root, spec)
        return replace(config, data=replace(config.data, root=str(root), update=True))

    ids = tuple(range(ALL))
    with refused("11", kind=ConfigError):
        run.resume(at(Spec(lengths=LENGTHS[:11] + LENGTHS[12:], ids=ids[:11] + ids[12:], gop=4)))
    with refused("3", kind=ConfigError):
        run.resume(at(Spec(lengths=(*LENGTHS[:3], 9, *LENGTHS[4:]), gop=4)))
    changed = at(Spec(lengths=LENGTHS, gop=4))
    path = sorted(root.glob("data/chunk-*/*.parquet"))[6]
    edit_column(path, "action", lambda rows: [row * 1000 + 7 for row in rows])
    with refused("13", kind=ConfigError):
        run.resume(changed)
    with refused("data.update", kind=ConfigError):  # no step is left
        run.resume(replace(changed, steps=RunDir(out).settings().steps))
    new = settings(root, tmp_path / "new")
    with refused("data.update", kind=ConfigError):
        run.train(replace(new, data=replace(new.data, update=True)))


@pytest.mark.parametrize("update", [False, True])
def test_removed_training_episodes_are_refused_by_name(
    folder: Path, tmp_path: Path, update: bool
) -> None:
    """A run without an update, one with an update, and one whose update is gone whole."""
    trained_on = sorted(used(folder / "begun", 4))[:2]
    gone = {
        "begun": trained_on,
        "grown": [*trained_on, min(used(folder / "grown") - set(range(OLD)))],
    }
    for name, ids in gone.items():
        out = copied(folder / name, tmp_path / f"{name}-{update}")
        root = tmp_path / f"{name}-data-{update}"
        config = RunDir(out).settings()
        keep = tuple(episode for episode in range(ALL) if episode not in ids)
        write_dataset(root, Spec(lengths=tuple(LENGTHS[e] for e in keep), ids=keep, gop=4))
        config = replace(config, steps=14, data=replace(config.data, root=str(root), update=update))
        with refused(
            "2 episodes", ", ".join(map(str, trained_on)), ids[-1], "restore", kind=ConfigError
        ):
            run.resume(config)
    with refused("data@4", OLD, MORE - 1, "restore", fix=None):  # the whole update
        run.resume(
            replace(config, data=replace(config.data, root=str(write(tmp_path / "old", OLD))))
        )


def test_episodes_that_are_no_longer_selected_are_named(tmp_path: Path) -> None:
    root = write(tmp_path / "data", OLD)
    out = tmp_path / "r"
    rate_episodes(root, success=[True] * OLD)
    config = override(settings(root, out, steps=4), data={"where": "success"})
    with recorded(out, 0, {}):
        assert run.train(config) == run.DONE
    lost = max(used(out))
    rate_episodes(write(root, OLD), success=[episode != lost for episode in range(OLD)])
    with refused("1 episode", lost, kind=ConfigError):
        run.resume(replace(config, steps=6))


def test_update_without_new_episodes_adds_nothing_and_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = copied(folder / "begun", tmp_path / "r")
    config = RunDir(out).settings()
    config = replace(
        config, data=replace(config.data, root=str(write(tmp_path / "data", OLD)), update=True)
    )
    with caplog.at_level("INFO", logger="understudy"):
        assert run.resume(config) == run.DONE
    assert any("nothing is added" in record.getMessage() for record in caplog.records)
    same_run(folder / "held", out)
    state = checkpoint.read_state(out / "checkpoints/step-00000012")
    assert (state["updates"], state["schedule"]) == (
        [],
        RunDir(out).read_record()["order"]["schedule"],
    )


def test_updated_run_resumes_on_a_renamed_dataset(folder: Path, tmp_path: Path) -> None:
    out = copied(folder / "grown", tmp_path / "r")
    config = RunDir(folder / "grown").settings()
    root = str(write(tmp_path / "renamed", MORE))
    assert (
        run.resume(
            replace(config, output_dir=str(out), steps=13, data=replace(config.data, root=root))
        )
        == run.DONE
    )


def test_open_loader_continues_while_the_dataset_grows(tmp_path: Path) -> None:
    """Tables and totals are rewritten in place, and files are added, as LeRobot's recorder does."""
    batches = []
    for grows in (False, True):
        with Loader(write(tmp_path / "data", OLD), batch_size=8, num_threads=1) as loader:
            head = [next(loader)["index"].tolist() for _ in range(3)]
            if grows:
                write(tmp_path / "data", MORE)
            batches.append([*head, *(next(loader)["index"].tolist() for _ in range(20))])
    assert batches[0] == batches[1]


@pytest.mark.long
def test_death_at_file_operations_around_an_update(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the first checkpoint behind the update: the run has the update and its frames, or
    neither.
    """
    done = [0]

    def until(number: int) -> Account:
        def fatal(plain: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*arguments: Any, **options: Any) -> Any:
                if done[0] >= number:
                    raise Died
                done[0] += 1
                return plain(*arguments, **options)

            return operation

        out = copied(folder / "begun", tmp_path / str(number))
        done[0] = 0
        with monkeypatch.context() as patch:
            for name in ("replace", "rename", "fsync", "mkdir"):
                patch.setattr(os, name, fatal(getattr(os, name)))
            with suppress(Died, Exception):
                resumed(out, 1, True, {5: send(signal.SIGTERM)})
        return Account.open(out, "latest")

    assert until(10**6).state["step"] == 5
    accounts = [until(number) for number in np.linspace(0, done[0], 14).astype(int).tolist()]
    steps = [account.state["step"] for account in accounts]
    assert steps == sorted(steps)
    assert set(steps) == {4, 5}
    assert [len(account.of) for account in accounts] == [1 if step == 4 else 2 for step in steps]
