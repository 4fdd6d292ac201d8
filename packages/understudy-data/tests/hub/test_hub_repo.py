"""Addresses of repositories, and local paths that are none."""

from pathlib import Path

import pytest

from understudy_data.hub.cards import ModelCard
from understudy_data.hub.download import HubRepo
from understudy_data.hub.ids import HubId


def test_an_address_names_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubRepo.parse("hf://me/run@v1") == HubRepo("me/run", "v1")
    assert HubRepo.parse("hf://datasets/me/set") == HubRepo("me/set", None, "dataset")
    assert HubRepo.parse("me/run") is None
    assert HubRepo.of_model("me/run") == HubRepo("me/run")
    (tmp_path / "me").mkdir()
    assert HubRepo.of_model("me/run") is None
    assert HubRepo.near_path("ma") == ""
    (tmp_path / "policies").mkdir()
    assert HubRepo.near_path("polices") == "policies"
    assert str(HubRepo("me/run", "v1")) == str(HubId("me/run", "v1"))


def test_an_edited_card_is_no_longer_signed() -> None:
    signed = ModelCard("# A policy\n").signed
    assert ModelCard.is_unchanged(signed.encode())
    assert not ModelCard.is_unchanged(signed.replace("A policy", "My policy").encode())
