"""A run on a dataset whose address holds credentials: they are used, and are in nothing that it
writes or prints.
"""

import base64
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from understudy.config.train import DataConfig, TrainConfig
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base import credentials
from understudy_data.testing.servers import Asked, RangeServer, folder
from understudy_kit import SourceConfig, dump_yaml, main, override

USER = "robot"
PASSWORD = "p4ssw0rd"
SIGNATURE = "s1gn4ture"
SECRETS = [PASSWORD, SIGNATURE, base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()]
BASIC = f"Basic {SECRETS[2]}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return folder(tiny_dataset(tmp_path_factory.mktemp("served") / "table"), "/team/table")


@pytest.fixture
def server(served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """Serves only those who know user, password and signature."""
    forget(monkeypatch)
    with RangeServer(dict(served)) as server:

        def answer(asked: Asked) -> tuple[int, dict[str, str], bytes] | None:
            known = asked.headers.get("authorization") == BASIC
            return (
                None
                if known and parse_qs(asked.query).get("sig") == [SIGNATURE]
                else (401, {}, b"")
            )

        server.answer = answer
        yield server


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process."""
    monkeypatch.setattr(credentials, "full_addresses", {})
    monkeypatch.delenv(credentials.VARIABLE, raising=False)


def understudy(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["understudy", *map(str, arguments)])
    code = main()
    assert not any(secret in argument for argument in sys.argv for secret in SECRETS), (
        "trackers write it down"
    )
    return code


def test_credentials_are_written_nowhere(
    server: RangeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = server.url.partition("://")[2]
    full = f"http://{USER}:{PASSWORD}@{host}/team/table?sig={SIGNATURE}&v=1"
    plain = f"{server.url}/team/table"
    out = tmp_path / "out"
    run = out / "run"
    file = tmp_path / "settings.yaml"
    config = override(
        tiny_config(Path(), run, steps=4, val={"every": 4}),
        log={"trackers": ("tensorboard",), "report": True},
    )
    file.write_text(
        dump_yaml(replace(config, data=replace(config.data, root=full, cache=str(out / "cache"))))
    )
    told = []

    def does(code: int, *arguments: object) -> str:
        found = understudy(monkeypatch, *arguments)
        said = "".join(capfd.readouterr())
        assert found == code, said
        told.append(said)
        return said

    said = does(0, "train", file)
    assert credentials.VARIABLE in said, "the remedy for a resume"
    assert RunDir(run).settings().data.root == plain
    assert does(0, "export", run, "--output-dir", out / "export")
    assert does(0, "check", full, "--page", out / "check.html")

    forget(monkeypatch)
    assert credentials.VARIABLE in does(2, "resume", run, "--steps", 6)
    monkeypatch.setenv(credentials.VARIABLE, full)
    assert does(0, "resume", run, "--steps", 6)
    forget(monkeypatch)
    assert does(0, "resume", run, "--steps", 8, "--data.root", full)
    forget(monkeypatch)
    monkeypatch.setenv(credentials.VARIABLE, full)
    assert does(0, "validate", run)
    assert does(0, "report", run)

    forget(monkeypatch)
    absent = full.replace("/table", "/nowhere")
    for debug in ((), ("--debug",)):
        assert does(2, "train", "--output-dir", out / "no", "--data.root", absent, *debug)
        assert does(2, "check", absent, *debug)
        assert does(
            2,
            "train",
            "--output-dir",
            out / "no",
            "--data.root",
            full,
            "--data.cameras",
            "strange",
            *debug,
        )
        assert does(2, "check", absent.replace(host, f"{host}:no:port"), *debug)

    assert any("traceback" in said.lower() for said in told), "--debug was tested, too"
    for said in told:
        assert [secret for secret in SECRETS if secret in said] == []
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {
        "config.yaml",
        "order.json",
        "state.json",
        "normalisation.json",
        "report.html",
        "check.html",
    } <= {path.name for path in files}
    assert any("tensorboard" in str(path) for path in files)
    found = {
        str(path): secret
        for path in files
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    }
    assert found == {}
    assert [path for path in out.rglob("*") for secret in SECRETS if secret in str(path)] == []


def test_sources_that_differ_only_in_their_query(
    served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep names of their own, and each is opened at its own address; by a resume from the
    environment, too.
    """
    forget(monkeypatch)
    with RangeServer(dict(served)) as server:
        full = [f"{server.url}/team/table?part={part}&sig={SIGNATURE}" for part in "ab"]
        config = tiny_config(Path(), tmp_path / "run", steps=2)
        data = DataConfig(
            sources=tuple(SourceConfig(root=root) for root in full),
            chunk_size=3,
            val_fraction=0.3,
            cache=str(tmp_path / "c"),
        )
        (tmp_path / "settings.yaml").write_text(dump_yaml(replace(config, data=data)))

        def parts() -> set[str]:
            return {parse_qs(asked.query)["part"][0] for asked in server.log}

        assert understudy(monkeypatch, "train", tmp_path / "settings.yaml") == 0
        assert parts() == {"a", "b"}
        server.log.clear()
        forget(monkeypatch)
        monkeypatch.setenv(credentials.VARIABLE, " ".join(full))
        assert understudy(monkeypatch, "resume", tmp_path / "run", "--steps", 3) == 0
        assert parts() == {"a", "b"}
        settings: TrainConfig = RunDir(tmp_path / "run").settings()
        assert len(set(settings.data.names())) == 2
    texts = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(SIGNATURE.encode() in text for text in texts)
