"""An account of a run equals a record of the batches that its steps consumed, whatever happened to
the run.
"""

import json
import os
import shutil
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy import Loader, Order
from understudy.report.audit_page import audit_page, audit_text
from understudy.testing.audited import damage, eventful_run, recorded, trained
from understudy.testing.mixtures import NAMES, mixed, tiny_sources
from understudy.testing.runs import SHORT, tiny_config, tiny_dataset, trained_run
from understudy.train import audit, run
from understudy.train.audit import FrameCounts, audit_file, audit_run
from understudy.train.checkpoint import checkpoint, checksums
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data import run_data
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused, warned
from understudy_kit import main, override
from understudy_kit.testing.browser import browser, faults


def counted(counts: FrameCounts) -> Counter[tuple[int, int, int]]:
    """Samples by (source, episode, frame)."""
    columns = [
        np.concatenate([block[name] for block in counts.frames()])
        for name in ("source", "episode", "frame", "samples")
    ]
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return Counter(
        {(counts.names.index(name), episode, frame): n for name, episode, frame, n in rows if n}
    )


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed, resumed on other ranks with other weights and another batch size, with a skipped step
    and bad frames.
    """
    root = tmp_path_factory.mktemp("audit")
    sources = tiny_sources(root)
    damage(root / "wide", 3, 10)
    changes = {
        "steps": 16,
        "batch_size": 6,
        "data": {"on_bad_frame": "substitute"},
        "checkpoint": {"keep_last": 9},
    }
    return eventful_run(mixed(sources, root / "run", device="cpu", **changes), [1.0, 4.0, 2.0])


@pytest.mark.long
def test_account_equals_the_record_of_the_batches(eventful: Path) -> None:
    for step in checkpoint.list_steps(eventful / "checkpoints"):
        result, counts = audit_run(eventful, step, ())
        record, skipped = trained(eventful, step)
        assert counted(counts) == record
        assert set(result["skipped_steps"]) == skipped
        assert result["samples"] == record.total()
        assert {name: of["samples"] for name, of in result["sources"].items()} == {
            name: sum(n for (source, *_), n in record.items() if source == number)
            for number, name in enumerate(NAMES)
        }
    assert result["checkpoint"] == 16
    assert [(start["step"], start["batch"], start["world"]) for start in result["starts"]] == [
        (0, 6, 1),
        (4, 8, 2),
        (10, 8, 1),
        (12, 8, 2),
    ]
    assert skipped == {9}
    assert result["not_trained"] == 8
    assert len(result["substitutions"]) >= 1
    assert {entry["source"] for entry in result["substitutions"]} == {"wide"}
    assert result["starts"][0]["weights"] == [3 / 6, 2 / 6, 1 / 6]
    assert result["starts"][1]["weights"] == [1 / 7, 4 / 7, 2 / 7]
    assert result["starts"][1]["shares"] == pytest.approx([1 / 7, 4 / 7, 2 / 7], abs=0.03)


def test_samples_of_a_task_are_those_of_its_frames(eventful: Path) -> None:
    """Also in episodes whose task changes, which every second one does."""
    task_of = dict[tuple[int, int, int], str]()
    for number, name in enumerate(NAMES):
        files = sorted((eventful.parent / name / "data").glob("chunk-*/*.parquet"))
        columns = pa.concat_tables(
            [
                pq.read_table(f, columns=["episode_index", "frame_index", "task_index"])
                for f in files
            ]
        )
        texts = run_data.open_data(RunDir(eventful).settings()).training[number].catalog.tasks
        task_of |= {
            (number, row["episode_index"], row["frame_index"]): texts[row["task_index"]]
            for row in columns.to_pylist()
        }
    for step in (4, 16):
        expected = Counter[str]()
        for frame, samples in trained(eventful, step)[0].items():
            expected[task_of[frame]] += samples
        assert {
            task: n for task, n in audit_run(eventful, step, ())[0]["tasks"].items() if n
        } == expected


def test_no_validation_frame_is_proved(eventful: Path) -> None:
    result, _ = audit_run(eventful, "latest", ())
    reserved = result["validation"]
    assert (reserved["samples"], reserved["first"]) == (0, None)
    data = run_data.open_data(RunDir(eventful).settings())
    assert reserved["frames"] == sum(len(part) for part in data.validation if part is not None)
    assert {name: of["frames"] for name, of in result["sources"].items()} == dict(
        zip(NAMES, map(len, data.training))
    )


def test_exported_run_is_the_record_and_plays_again(eventful: Path, tmp_path: Path) -> None:
    out = tmp_path / "order.parquet"
    assert main(["order", "export", str(eventful), str(out), "--world-size", "2"]) == 0
    record, skipped = trained(eventful, 16)
    rows = pq.read_table(out).to_pylist()
    assert [row["position"] for row in rows] == list(range(4 * 6 + 12 * 8))
    assert (
        Counter((NAMES.index(r["dataset"]), r["episode"], r["frame"]) for r in rows if r["weight"])
        == record
    )
    assert {row["step"] + 1 for row in rows if not row["weight"]} == skipped
    assert Counter(row["step"] for row in rows) == Counter(
        dict.fromkeys(range(4), 6) | dict.fromkeys(range(4, 16), 8)
    )
    assert [row["rank"] for row in rows[:6]] == [0, 0, 0, 1, 1, 1]
    with refused("batch_size", kind=ValueError):
        Order.from_file(out)
    with warned(12, "step"):
        order = Order.from_file(out, batch_size=12)
    with Loader(
        run_data.open_data(RunDir(eventful).settings()).training, order=order, image_size=(32, 32)
    ) as loader:
        played = [
            (int(s), int(e), int(f))
            for b in loader
            for s, e, f in zip(b["source"], b["episode_index"], b["frame_index"])
        ]
    assert played == [(NAMES.index(row["dataset"]), row["episode"], row["frame"]) for row in rows]
    assert (
        main(
            [
                "order",
                "export",
                str(eventful),
                str(tmp_path / "part.parquet"),
                "--from-step",
                "3",
                "--steps",
                "2",
            ]
        )
        == 0
    )
    assert pq.read_table(tmp_path / "part.parquet").to_pylist() == [
        row | {"rank": 0} for row in rows if row["step"] in (3, 4)
    ]
    result, counts = audit_file(out, "latest", (), ())
    assert counted(counts) == record
    assert result["not_trained"] == 8
    for words in (
        ["--seed", "1"],
        ["--batch-size", "4"],
        ["--weights", "1", "2", "3"],
        ["--memory", "1GB"],
    ):
        assert (
            main(["order", "export", str(eventful), str(tmp_path / "other.parquet"), *words]) == 2
        )
    assert not (tmp_path / "other.parquet").exists()


def test_account_of_a_file_up_to_a_step_is_that_of_its_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table(
        {"step": [0, 0, 1, 1, 1, 2], "episode": [0, 1, 0, 0, 2, 1], "frame": [3, 1, 2, 3, 0, 0]}
    )
    pq.write_table(table, tmp_path / "order.parquet", row_group_size=2)
    result, counts = audit_file(tmp_path / "order.parquet", 2, ["1", "2"], ["2"])
    assert counted(counts) == {(0, 0, 3): 2, (0, 0, 2): 1, (0, 1, 1): 1, (0, 2, 0): 1}
    assert result["without"]["first"] == {
        "source": "",
        "step": 1,
        "position": 4,
        "episode": 2,
        "frame": 0,
    }
    assert result["validation"]["first"]["step"] == 0
    # frames of validation: apart
    assert result["sources"][""] == {"episodes": 1, "frames": 4, "seen": 2, "samples": 5}
    assert result["checkpoint"] == 2
    named = audit_file(tmp_path / "order.parquet", 2, ["1-4", "7"], ["2", "8-9"])[0]
    assert (named["validation"]["unknown"], named["without"]["unknown"]) == (
        ["2 of 1-4", "7"],
        ["8-9"],
    )
    assert all(ids in audit_text(named) and ids in audit_page(named) for ids in ("2 of 1-4", "8-9"))
    with refused("4-3", kind=ConfigError):
        audit_file(tmp_path / "order.parquet", 2, ["4-3"], ())
    for step in (0, 4):  # none, and one that the file does not reach
        with refused(step, kind=ConfigError):
            audit_file(tmp_path / "order.parquet", step, (), ())
    assert audit_file(tmp_path / "order.parquet", 3, (), ())[0]["samples"] == 6
    pq.write_table(pa.table({"episode": [0, 1], "frame": [0, 70_000]}), tmp_path / "global.parquet")
    monkeypatch.setattr(audit, "available_memory", lambda: 1 << 20)
    with refused(70_000, 1, kind=ConfigError):
        audit_file(tmp_path / "global.parquet", "latest", (), ())
    pq.write_table(table.drop_columns("step"), tmp_path / "rows.parquet")
    with refused("step", kind=ConfigError):
        audit_file(tmp_path / "rows.parquet", 2, (), ())
    assert main(["audit", str(tmp_path / "order.parquet"), "--checkpoint", "best"]) == 2


def test_withdrawn_episodes_have_a_first_step_or_none(eventful: Path) -> None:
    rows = audit_run(eventful, "latest", ())[1].table()
    episodes = dict(
        zip(zip(rows["source"].tolist(), rows["episode"].tolist()), rows["samples"].tolist())
    )
    for (source, episode), samples in episodes.items():
        result, _ = audit_run(eventful, "latest", [f"{source}:{episode}"])
        firsts = [
            step
            for step in range(1, 17)
            if any(
                of == (NAMES.index(source), episode)
                for of in ((s, e) for s, e, _ in trained(eventful, step)[0])
            )
        ]
        without = result["without"]
        assert (without["samples"], without["unknown"]) == (samples, [])
        assert (without["first"]["step"] if without["first"] else None) == (
            firsts[0] if firsts else None
        )
        assert without["checkpoints"] == [
            step for step in (4, 8, 10, 12, 16) if firsts and step >= firsts[0]
        ]
    late = next(pair for pair in episodes if pair[0] == "wide" and episodes[pair])
    early, _ = audit_run(eventful, 4, ["{}:{}".format(*late)])
    assert early["checkpoints"] == [4]  # and not those trained after it
    reserved = next(pair for pair, samples in episodes.items() if samples == 0)
    without = audit_run(eventful, "latest", ["{}:{}".format(*reserved), "two:99"])[0]["without"]
    assert (without["first"], without["checkpoints"], without["unknown"]) == (None, [], ["two:99"])
    assert not without["in_statistics"]
    for text in ("3", "wide:x", "other:3", "wide:3-"):
        with refused(text, kind=ConfigError):
            audit_run(eventful, "latest", [text])


def test_account_needs_no_dataset_and_changes_nothing(eventful: Path, tmp_path: Path) -> None:
    shutil.copytree(eventful, tmp_path / "moved")
    (tmp_path / "moved/checkpoints/step-00000016").joinpath("state.json").touch()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "moved").rglob("*")}
    for path in (tmp_path / "moved").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    names = [eventful.parent / name for name in NAMES]
    for name in names:
        name.rename(name.with_name(name.name + ".gone"))
    try:
        counts = audit_run(tmp_path / "moved", "latest", ())[1]
    finally:
        for name in names:
            name.with_name(name.name + ".gone").rename(name)
    assert counted(counts) == trained(eventful, 16)[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "moved").rglob("*")} == before
    for path in (tmp_path / "moved").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_planted_validation_frames_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Two sources of one dataset with other validation episodes, which a run refuses: here the
    check is taken out.
    """
    tiny_dataset(tmp_path / "data")
    config = tiny_config(tmp_path / "data", tmp_path / "run", **SHORT)
    source = config.data.mixed()[0]
    sources = (
        replace(source, name="one", val_episodes=(1, 2)),
        replace(source, name="two", val_episodes=(2, 3)),
    )
    monkeypatch.setattr(run_data.EpisodeSplit, "check_disjoint", lambda *_: None)
    config = replace(config, data=replace(config.data, root="", val_fraction=0.0, sources=sources))
    assert run.train(config) == run.DONE
    result, counts = audit_run(tmp_path / "run", "latest", ())
    seen = {key: n for key, n in counted(counts).items() if key[1] in (1, 2, 3)}
    assert result["validation"]["samples"] == sum(seen.values()) > 0
    first = result["validation"]["first"]
    assert (("one", "two").index(first["source"]), first["episode"], first["frame"]) in seen
    assert main(["audit", str(tmp_path / "run"), "--out", str(tmp_path / "account")]) == 1
    assert f"episode {first['episode']}" in capsys.readouterr().out
    assert main(["order", "export", str(tmp_path / "run"), str(tmp_path / "order.parquet")]) == 0
    words = ["--validation", "one:1-3", "two:1-3", "--json"]
    assert main(["audit", str(tmp_path / "order.parquet"), *words]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    file_first = first | {"step": first["step"] - 1}
    assert (found["validation"]["samples"], found["validation"]["first"]) == (
        sum(seen.values()),
        file_first,
    )


def test_withdrawn_episodes_are_those_of_every_source_of_their_dataset(tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "data")
    config = tiny_config(tmp_path / "data", tmp_path / "run", **SHORT)
    source = config.data.mixed()[0]
    sources = (replace(source, name="one"), replace(source, name="two"))
    config = replace(config, data=replace(config.data, root="", sources=sources))
    assert run.train(config) == run.DONE
    result, counts = audit_run(tmp_path / "run", "latest", ["two:0-9"])
    assert result["without"]["samples"] == result["samples"] == counted(counts).total() > 0


def test_frames_of_an_account_are_those_of_its_selection(tmp_path: Path) -> None:
    keep = {str(episode): [[1, 3], [5, 7]] for episode in range(10)}
    (tmp_path / "keep.json").write_text(json.dumps(keep))
    config = tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "run", **SHORT)
    config = override(
        config, data={"keep_ranges": str(tmp_path / "keep.json"), "keep_rule": "start"}
    )
    assert run.train(config) == run.DONE
    result, counts = audit_run(tmp_path / "run", "latest", ())
    data = run_data.open_data(RunDir(tmp_path / "run").settings())
    (of_source,) = result["sources"].values()
    assert (
        of_source["frames"]
        == len(data.training[0])
        < sum(data.training[0].catalog.episodes.lengths) // 2
    )
    assert result["validation"]["frames"] == len(data.validation[0] or ())
    assert set(counts.table()["frames"].tolist()) == {3, 4}  # the shortest has 6 frames


def test_account_of_a_file_needs_memory_for_its_episodes_and_not_for_its_rows(
    tmp_path: Path,
) -> None:
    table = pa.table({"episode": np.arange(2000), "frame": np.zeros(2000, int)})
    with pq.ParquetWriter(tmp_path / "order.parquet", table.schema) as writer:
        for _ in range(200):
            writer.write_table(table)
    tracemalloc.start()
    result, _ = audit_file(tmp_path / "order.parquet", "latest", (), ())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result["samples"] == 400_000
    assert peak < 4 << 20  # the rows of all groups would be 12 MiB


def test_folder_has_the_account_in_every_form(eventful: Path, tmp_path: Path, capsys: Any) -> None:
    words = [
        "audit",
        str(eventful),
        "--without",
        "wide:0-1",
        "--checkpoint",
        "12",
        "--json",
        "--out",
        str(tmp_path / "a"),
    ]
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "a/audit.json").read_text())
    record, _ = trained(eventful, 12)
    frames = pq.read_table(tmp_path / "a/frames.parquet").to_pylist()
    assert {
        (NAMES.index(r["source"]), r["episode"], r["frame"]): r["samples"]
        for r in frames
        if r["samples"]
    } == record
    episodes = pq.read_table(tmp_path / "a/episodes.parquet").to_pylist()
    for row in episodes:
        of_episode = [
            n for (s, e, _), n in record.items() if (NAMES[s], e) == (row["source"], row["episode"])
        ]
        assert (row["samples"], row["seen"], row["most"]) == (
            sum(of_episode),
            len(of_episode),
            max(of_episode, default=0),
        )
    page = (tmp_path / "a/audit.html").read_text()
    assert "checkpoint 12" in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


def test_factors_of_the_loss_are_the_weights(tmp_path: Path) -> None:
    data = tiny_dataset(tmp_path / "data")
    values = {
        (episode, frame): (0.5, 1.0, 2.7)[(episode + frame) % 3]
        for episode in range(10)
        for frame in range(12)
    }
    lengths = (9, 7, 11, 8, 6, 10, 9, 7, 8, 12)
    rows = [
        (episode, frame, values[episode, frame])
        for episode in range(10)
        for frame in range(lengths[episode])
    ]
    table = dict(
        zip(("episode", "frame", "weight"), map(list, zip(*rows, strict=True)), strict=True)
    )
    pq.write_table(pa.table(table), tmp_path / "weights.parquet")
    for kind in ("loss", "order", "both"):
        weights = {"frame_weights": str(tmp_path / "weights.parquet"), "frame_weights_in": kind}
        assert (
            run.train(override(tiny_config(data, tmp_path / kind, **SHORT), data=weights))
            == run.DONE
        )
        assert (
            main(["order", "export", str(tmp_path / kind), str(tmp_path / f"{kind}.parquet")]) == 0
        )
        for row in pq.read_table(tmp_path / f"{kind}.parquet").to_pylist():
            weight = values[row["episode"], row["frame"]]
            expected = {"loss": weight, "order": 1.0, "both": weight / max(1, round(weight))}[kind]
            assert row["weight"] == pytest.approx(expected)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1200, "light")])
def test_page_is_legible_in_a_browser(
    eventful: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    main(["audit", str(eventful), "--without", "wide:0-1", "--out", str(tmp_path / "a")])
    with browser() as opened:
        assert faults(opened, tmp_path / "a/audit.html", width, scheme) == []


@pytest.mark.parametrize("changes", [{"mode": "joint"}, {"max_samples": 3}])
def test_task_modes_and_parts_of_a_batch_change_no_count(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = tiny_config(
        tiny_dataset(tmp_path / "data"), tmp_path / "run", device="cpu", **SHORT, **changes
    )
    with recorded(tmp_path / "run", 0, {}):
        assert run.train(config) == run.DONE
    for step in (2, 4):
        assert (
            counted(audit_run(tmp_path / "run", step, ())[1]) == trained(tmp_path / "run", step)[0]
        )


def test_files_that_contradict_each_other_are_refused(eventful: Path, tmp_path: Path) -> None:
    def changed(name: str, change: Any) -> Path:
        copy = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(eventful, copy)
        change(copy / name)
        return copy

    def without_a_line(path: Path) -> None:
        lines = [line for line in path.read_text().splitlines() if '"step": 5,' not in line]
        path.write_text("\n".join(lines) + "\n")

    def another_frame(path: Path) -> None:
        table = pq.read_table(path)
        starts = table["start"].to_numpy().copy()
        starts[0] += 1
        pq.write_table(
            table.set_column(table.column_names.index("start"), "start", pa.array(starts)), path
        )

    def another_episode(path: Path) -> None:
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(entry | {"episode": 99}) + "\n" for entry in entries))

    def torn_entry(path: Path) -> None:
        path.write_text("no entry\n" + path.read_text())

    def no_starts(path: Path) -> None:
        state = {
            k: v
            for k, v in json.loads(path.read_text()).items()
            if k not in (checksums.SEAL, "starts")
        }
        path.write_text(json.dumps(checksums.add_seal(state)))

    def another_start(path: Path) -> None:
        state = json.loads(path.read_text())
        state["starts"][1]["batch"] = 7
        path.write_text(
            json.dumps(checksums.add_seal({k: v for k, v in state.items() if k != checksums.SEAL}))
        )

    for name, change, value in (
        ("metrics.jsonl", without_a_line, "15 of 16"),
        ("frames.parquet", another_frame, "frames.parquet"),
        ("frames.parquet", os.remove, "frames.parquet"),
        ("substitutions-0.jsonl", another_episode, "position"),
        ("substitutions-0.jsonl", torn_entry, "substitutions-0.jsonl"),
        ("checkpoints/step-00000016/state.json", no_starts, "understudy"),
        ("checkpoints/step-00000016/state.json", another_start, "step 10"),
    ):
        if (eventful / name).exists():
            with refused(value, kind=ConfigError):
                audit_run(changed(name, change), "latest", ())
    with refused(tmp_path / "nothing", kind=ConfigError):
        audit_run(tmp_path / "nothing", "latest", ())
    with refused("7", kind=ConfigError):
        audit_run(eventful, 7, ())


def test_active_run_is_named_with_the_step_that_was_read(tmp_path: Path, capsys: Any) -> None:
    copy = trained_run(tmp_path / "run", **SHORT)
    with RunDir(copy).lock():
        assert main(["audit", str(copy)]) == 0
    assert "checkpoint 4 of a run that is training" in capsys.readouterr().out


def test_journals_of_a_resumed_run_have_no_later_positions(eventful: Path, tmp_path: Path) -> None:
    from understudy_data.load.bad_frames import Substitution

    shutil.copytree(eventful, tmp_path / "run")
    path = next(
        path for path in (tmp_path / "run").glob("substitutions-*.jsonl") if path.stat().st_size
    )
    entries = Substitution.read_journal(path)
    with path.open("a") as file:
        file.write('{"torn')
    assert Substitution.read_journal(path) == entries
    Substitution.truncate_journals(tmp_path / "run", entries[-1].position)
    assert Substitution.read_journal(path) == [
        entry for entry in entries if entry.position < entries[-1].position
    ]
