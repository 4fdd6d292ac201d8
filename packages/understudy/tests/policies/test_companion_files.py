"""Files of a policy: copied with it, found again, and noticed when they change."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from understudy.policies import policy_folder, registry
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.policy_folder import check_unchanged, digests
from understudy.policies.registry import PolicyType
from understudy.policies.settings import PolicySettings, network_differences
from understudy.testing.policies import editable
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

FILES = {"words": ("words.model",), "codes": ("codes.json", "more.json")}


@dataclass(frozen=True, kw_only=True)
class ReaderSettings(PolicySettings):
    FILES: ClassVar[Mapping[str, tuple[str, ...]]] = FILES
    type: Literal["reader"] = "reader"
    words: str = ""
    codes: str = ""


@dataclass(frozen=True)
class ReaderConfig(ReaderSettings, PolicyConfig):
    pass


READER = PolicyType(ReaderSettings, lambda config, normalization: None, config=ReaderConfig)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file and a folder that a policy needs, and a large file that it does not."""
    monkeypatch.setitem(registry.BUILT_IN, "reader", f"{__name__}:READER")
    (tmp_path / "my.model").write_text("words")
    (tmp_path / "codes").mkdir()
    for name in ("codes.json", "more.json", "weights.bin"):
        (tmp_path / "codes" / name).write_text(name)
    return tmp_path


def config(here: Path, **changes: Any) -> ReaderConfig:
    return ReaderConfig(
        action_dim=1, **({"words": str(here / "my.model"), "codes": str(here / "codes")} | changes)
    )


def save(here: Path, own: ReaderConfig, name: str = "policy") -> Path:
    policy_folder.save(here / name, own, {"action": {}}, {"w": torch.zeros(1)})
    return here / name


def test_a_saved_policy_has_copies_and_finds_them_anywhere(here: Path) -> None:
    saved = save(here, config(here))
    files = sorted(str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file())
    names = [
        "codes/codes.json",
        "codes/more.json",
        "config.json",
        "model.safetensors",
        "normalisation.json",
    ]
    assert files == ["README.md", *names, "understudy.sha256", "words.model"]
    moved = saved.rename(here / "elsewhere")
    (here / "my.model").unlink()
    loaded = policy_folder.load(moved).config
    assert (loaded.words, loaded.codes) == (str(moved / "words.model"), str(moved / "codes"))
    assert (moved / "words.model").read_text() == "words"
    stored = json.loads((moved / "config.json").read_text())
    assert (stored["words"], stored["codes"]) == ("words.model", "codes")


def test_a_loaded_policy_is_saved_again_with_its_files(here: Path) -> None:
    first = save(here, config(here))
    again = save(here, policy_folder.load(first).config, "again")
    assert digests(policy_folder.load(again).config) == digests(config(here))
    save(here, policy_folder.load(again).config, "again")  # in place of itself
    assert digests(policy_folder.load(again).config) == digests(config(here))


@pytest.mark.parametrize("path", ["/etc/hostname", "../my.model", "codes/../../my.model"])
def test_a_folder_names_no_file_outside_it(here: Path, path: str) -> None:
    saved = editable(save(here, config(here)))
    stored = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(stored | {"words": path}))
    with refused("words", repr(path), kind=ValueError):
        policy_folder.load(saved)


def test_a_policy_without_files_has_none(here: Path) -> None:
    saved = save(here, config(here, words="", codes=""))
    assert len(list(saved.iterdir())) == 5
    assert policy_folder.load(saved).config.words == ""


@pytest.mark.parametrize("name", ["other.txt", "codes/weights.bin", "words"])
def test_a_folder_with_other_files_is_not_replaced(here: Path, name: str) -> None:
    saved = save(here, config(here))
    if name == "words":
        (saved / name).mkdir()
        (saved / name / "mine").touch()
    else:
        (saved / name).touch()
    with pytest.raises(FileExistsError, match=name.partition("/")[0]):
        save(here, config(here))


def test_a_changed_or_missing_file_is_named(here: Path) -> None:
    own = config(here)
    recorded = digests(own)
    check_unchanged(own, recorded)
    (here / "codes" / "weights.bin").write_text("other")
    check_unchanged(own, recorded)
    (here / "codes" / "more.json").write_text("other")
    with pytest.raises(ConfigError, match=r"policy\.codes"):
        check_unchanged(own, recorded)
    (here / "my.model").unlink()
    with pytest.raises(ConfigError, match=r"policy\.words"):
        digests(own)


def test_paths_do_not_make_another_network(here: Path) -> None:
    assert network_differences(config(here), config(here, words="", codes="")) == []
    assert network_differences(config(here), config(here, image_size=(8, 8))) != []


def test_resolved_paths_are_absolute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    own = ReaderSettings(words="my.model").resolved()
    assert (own.words, own.codes) == (str(here / "my.model"), "")
    assert asdict(own) | {"words": "my.model"} == asdict(ReaderSettings(words="my.model"))
