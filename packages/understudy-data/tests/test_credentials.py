"""Credentials in addresses: removed for display, and restored for opening."""

import pickle
from pathlib import Path

import pytest

from understudy_base import DatasetError, credentials
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions


@pytest.fixture(autouse=True)
def _no_remembered_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "full_addresses", {})
    monkeypatch.delenv(credentials.VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("address", "seen"),
    [
        ("http://user:PASS@h:80/team/table?sig=SECRET", "http://h:80/team/table"),
        ("https://TOKEN@h/table", "https://h/table"),
        ("https://h/table/?sv=1&sig=a%2Fb/=#part", "https://h/table/"),
        ("http://user:PA/SS@h/table", "http://h/table"),
        ("http://user:PA?SS@h/table", "http://h/table"),
        ("http://u:PASS@[::1]:8000/t", "http://[::1]:8000/t"),
        ("https://h/@scope/table@2", "https://h/@scope/table@2"),
        ("s3://KEY:SECRET@bucket/table", "s3://bucket/table"),
        ("sftp://me:PASS@h/table", "sftp://h/table"),
        (
            "abfs://container@account.dfs.core.windows.net/t?sig=S",
            "abfs://container@account.dfs.core.windows.net/t",
        ),
        ("hf://datasets/lerobot/pusht@main", "hf://datasets/lerobot/pusht@main"),
        ("github://org:repo@sha/data", "github://org:repo@sha/data"),
        ("simplecache::https://u:PASS@h/t?sig=S", "simplecache::https://h/t"),
        ("http://h/table#2", "http://h/table#2"),
        ("https://h/My Data/t?sig=SECRET", "https://h/My Data/t"),
        ("https://h/Bob's/t?sig=SECRET", "https://h/Bob's/t"),
        ("memory://a/b", "memory://a/b"),
        ("file:///data/what?", "file:///data/what?"),
        ("/data/a?b@c:d", "/data/a?b@c:d"),
        ("--data.root=http://u:PASS@h/t?s=1", "--data.root=http://h/t"),
    ],
)
def test_strip_credentials(address: str, seen: str) -> None:
    assert credentials.strip_credentials(address) == seen
    assert credentials.strip_credentials(seen) == seen


def test_restore_credentials_returns_the_remembered_address() -> None:
    names: dict[str, str] = {}
    first = "http://h/t?part=1"
    second = "http://u:PASS@h/t/?part=2"
    assert credentials.remember_credentials(first, names) == "http://h/t"
    assert credentials.remember_credentials(first, names) == "http://h/t"
    name = credentials.remember_credentials(second, names)
    assert name != "http://h/t", "it may be another dataset"
    assert credentials.remember_credentials(name, {}) == name
    assert (
        credentials.restore_credentials("http://h/t")
        == credentials.restore_credentials("http://h/t/")
        == first
    )
    assert credentials.restore_credentials(name) == second
    assert credentials.restore_credentials("http://h/other") == "http://h/other"
    assert not credentials.has_credentials("http://h/other")
    credentials.remember_credentials("http://h/t?part=9", {}, replace=False)
    assert credentials.restore_credentials("http://h/t") == first
    credentials.remember_credentials("http://h/t?part=9", {})
    assert credentials.restore_credentials("http://h/t") == "http://h/t?part=9"
    assert credentials.remember_credentials("/data/t", names) == "/data/t"


def test_addresses_with_and_without_a_query_stay_distinct() -> None:
    for pair in (("http://h/t", "http://h/t?part=2"), ("http://h/t?part=2", "http://h/t")):
        names: dict[str, str] = {}
        one, two = (credentials.remember_credentials(address, names) for address in pair)
        assert one != two
        assert [
            credentials.restore_credentials(one).partition("#")[0],
            credentials.restore_credentials(two).partition("#")[0],
        ] == list(pair)


def test_restore_credentials_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    one = "http://u:PASS@h/t?part=1"
    two = "http://u:PASS@h/t?part=2"
    monkeypatch.setenv(credentials.VARIABLE, f"{one}\n {two}  https://TOKEN@h/x/")
    assert credentials.restore_credentials("http://h/t") == one
    assert credentials.restore_credentials("http://h/t#2") == two
    assert credentials.restore_credentials("https://h/x") == "https://TOKEN@h/x/"


def test_redact_removes_all_secrets() -> None:
    credentials.remember_credentials("http://user:p%40ssw0rd@h/t?sig=SIGNATURE&v=1", {})
    seen = credentials.redact(
        "GET /t?sig=SIGNATURE&v=1 for user:p%40ssw0rd, p@ssw0rd, SIGNATURE, dXNlcjpwQHNzdzByZA=="
    )
    for secret in ("SIGNATURE", "ssw0rd", "dXNlcjpwQHNzdzByZA"):
        assert secret not in seen
    error = DatasetError(
        "at http://x:PASS@g/y?k=K it fails", where="http://a:PASS@g/z", fix="see http://h/t?a=PASS"
    )
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert "PASS" not in str(one) + str(one.where) + one.what + one.fix
    assert str(DatasetError("a", where=Path("/x?y"))) == "/x?y: a"


def test_files_hide_credentials_and_use_them() -> None:
    full = "memory://u:PASS@set/table?sig=SECRET"
    for files in (Files(full), pickle.loads(pickle.dumps(Files(full)))):
        for seen in (files.root, files.where("meta/info.json"), repr(files)):
            assert "PASS" not in seen
            assert "SECRET" not in seen
    assert "SECRET" not in repr(RemoteOptions(storage_options={"secret": "SECRET"}))
    with pytest.raises(DatasetError) as caught:
        Catalog.open(full)
    assert "PASS" not in str(caught.value)
    assert "SECRET" not in str(caught.value)
