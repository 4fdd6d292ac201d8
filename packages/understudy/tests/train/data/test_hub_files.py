"""Files of a policy by a hub id: fetched once from a hub on this machine, and clear errors without
one.
"""

import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="needs the extra hub")

from huggingface_hub import constants

from understudy.config.train import TrainConfig
from understudy.policies.pi05.config import Pi05Settings
from understudy.train.paths import with_local_files
from understudy_base import ConfigError, MissingExtraError
from understudy_data.hub.ids import HubId
from understudy_data.testing.writable_hub import Repo, WritableHub, serve_hub

NAMES = ("tokenizer.model", "tokenizer.json", "processor_config.json", "large.safetensors")
WEIGHTS = (
    "config.json",
    "model.safetensors",
    "assets/robot/norm_stats.json",
    "policy_preprocessor.json",
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[WritableHub]:
    """A hub with the repository me/words, whose only commit has the tag v1."""
    with serve_hub(monkeypatch, tmp_path / "cache") as found:
        found.repos["models/me/words"] = repo = Repo()
        repo.add(
            {name: name.encode() for name in (*NAMES, *WEIGHTS, "pytorch_model.bin", "README.md")}
        )
        repo.tags["v1"] = repo.main
        yield found


def config(**policy: str) -> TrainConfig:
    return TrainConfig(policy=Pi05Settings(size="tiny", **policy))  # type: ignore[arg-type]


def test_files_of_hub_ids_become_local_paths(hub: WritableHub) -> None:
    found = with_local_files(config(tokenizer="me/words", fast="hf://me/words@v1"))
    for field, names in {
        "tokenizer": ["tokenizer.model"],
        "fast": ["tokenizer.json", "processor_config.json"],
    }.items():
        folder = Path(getattr(found.policy, field))
        # another `main` later changes nothing
        assert folder.name == hub.repos["models/me/words"].main
        assert all((folder / name).read_bytes() == name.encode() for name in names)
    assert sorted(path.rpartition("/")[2] for path in hub.downloads) == [
        "processor_config.json",
        "tokenizer.json",
        "tokenizer.model",
    ]
    resolved = found.resolved().policy
    assert isinstance(resolved, Pi05Settings)
    assert Path(resolved.tokenizer).is_dir()
    assert with_local_files(found) == found


def test_fetched_files_need_no_network_later(
    hub: WritableHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = with_local_files(config(tokenizer="me/words"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert with_local_files(config(tokenizer="me/words")) == first
    with pytest.raises(ConfigError) as caught:
        with_local_files(config(fast="me/words"))
    assert str(caught.value).startswith("policy.fast: me/words: tokenizer.json")


def test_weights_of_a_hub_id_become_a_local_folder(hub: WritableHub) -> None:
    """Files that are read, and no others; the path in the settings has the commit."""
    found = with_local_files(config(weights="me/words@v1")).policy
    assert isinstance(found, Pi05Settings)
    folder = Path(found.weights)
    assert folder.name == hub.repos["models/me/words"].main
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == {*WEIGHTS, "tokenizer.model", "tokenizer.json", "processor_config.json"}
    assert all((folder / name).read_bytes() == name.encode() for name in there)
    assert with_local_files(TrainConfig(policy=found)).policy == found


@pytest.mark.parametrize("name", ["me/other", "me/words@v2"])
@pytest.mark.parametrize(("field", "file"), [("tokenizer", "tokenizer.model"), ("weights", "")])
def test_unknown_repository_is_named(hub: WritableHub, field: str, file: str, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_local_files(config(**{field: name}))
    assert str(caught.value).startswith(f"policy.{field}: {name}: {file}")


def test_no_network_is_named(hub: WritableHub, monkeypatch: pytest.MonkeyPatch) -> None:
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(hub.url, "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    # between the attempts of huggingface_hub
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(ConfigError) as caught:
        with_local_files(config(tokenizer="me/words"))
    assert str(caught.value).startswith("policy.tokenizer: me/words: tokenizer.model")


def test_token_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise RuntimeError("refused: Bearer hf_secretSecret")

    monkeypatch.setenv("HF_TOKEN", "hf_secretSecret")
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ConfigError) as caught:
        with_local_files(config(tokenizer="owner/name"))
    assert "hf_secretSecret" not in "".join(traceback.format_exception(caught.value))


def test_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match="hub"):
        with_local_files(config(tokenizer="me/words"))
    plain = config(tokenizer="tokenizer.model")
    assert with_local_files(plain) is plain


def test_local_paths_are_no_hub_ids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for text in (
        "",
        "here",
        "here/words",
        "/a/b",
        "./a/b",
        "a/b/c",
        "a/tokenizer.model",
        "a/model.safetensors",
        "~/words",
        "../words",
    ):
        assert HubId.of_model(text) is None
    assert HubId.of_model("me/words") == HubId("me/words")
    assert HubId.of_model("me/words@v1/x") == HubId("me/words", "v1/x")
    assert HubId.of_model("hf://here/words") == HubId("here/words")
    assert with_local_files(replace(config(), steps=3)).steps == 3
