"""README.md of a policy folder: facts of the policy, in a form that hubs read; a user's own text is
kept.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import understudy as us
from understudy.policies.model_card import make_card
from understudy.testing.policies import policy
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_client import CameraFacts, Contract, RobotFacts, VectorFacts
from understudy_data.hub.cards import is_unchanged


def test_card_of_a_run_has_its_facts(tmp_path: Path) -> None:
    root = tmp_path / "run"
    assert (
        run.train(tiny_config(tiny_dataset(tmp_path / "data"), root, val={"every": 6})) == run.DONE
    )
    export(ExportConfig(run=str(root)))
    facts = us.load_policy(root).facts
    assert facts is not None
    for folder in (root / "policy", root / "export"):
        text = (folder / "README.md").read_text()
        head = yaml.safe_load(text.split("---")[1])
        assert head == {
            "library_name": "understudy",
            "pipeline_tag": "robotics",
            "tags": ["robotics", "flow"],
        }
        contract = us.load_policy(folder).contract
        assert contract is not None
        shown = [f"{value:.6g}" for value in contract.provenance["figures"].values()]
        shown += [
            facts.action.key,
            *facts.action.names,
            *facts.tasks,
            *contract.provenance["datasets"],
            "step 12",
        ]
        shown += [camera.key for camera in facts.cameras.values()]
        assert [each for each in shown if each not in text] == []
        assert contract.provenance["figures"].keys() == {
            "loss, mean of all samples",
            "loss, mean of the tasks",
        }
        assert is_unchanged(text.encode())


def test_texts_of_a_dataset_have_no_effect_in_a_card() -> None:
    """Neither HTML nor Markdown, nor lines and cells of their own."""
    evil = "`<img src=x onerror=alert(1)>` [x](javascript:y)\n# forged | a\x1b[2J"
    names = ("<b>", "a|b\n|c|")
    figures = {name: np.ones(2) for name in ("mean", "std", "min", "max", "q01", "q99")}
    vector = VectorFacts(evil, names, figures)
    camera = CameraFacts(evil, (4, 4))
    facts = RobotFacts(30, 4, evil, evil, vector, vector, {evil: camera}, (evil, ""), 0, 1)
    contract = Contract({evil: facts, "b": facts}, {"run": evil, "datasets": [evil]}).to_json()
    text = make_card({"type": "flow"}, 3, contract)
    plain = re.sub("`[^`\n]*`", "", text.partition("## Data")[2].partition("<!--")[0])
    assert not set("<[\x1b`") & set(plain.replace("[H, W, 3]", "").replace("[2]", ""))
    lines = text.splitlines()
    assert [
        line for line in lines if line.startswith("#") and "forged" in line and "`" not in line
    ] == []
    assert {line.count("|") for line in lines if line.startswith("|")} == {4}


def test_card_is_replaced_with_its_policy(tmp_path: Path) -> None:
    policy().save(tmp_path / "policy")
    first = (tmp_path / "policy" / "README.md").read_bytes()
    policy(layers=1).save(tmp_path / "policy")
    second = (tmp_path / "policy" / "README.md").read_bytes()
    assert second != first
    assert is_unchanged(first)
    assert is_unchanged(second)


def test_edited_card_stays_when_its_policy_is_replaced(tmp_path: Path) -> None:
    """A run replaces its policy after the last step: a refusal would come too late."""
    card = tmp_path / "policy" / "README.md"
    policy().save(card.parent)
    weights = (card.parent / "model.safetensors").read_bytes()
    card.write_text(card.read_text() + "\nmine")
    mine = card.read_bytes()
    policy(layers=1).save(card.parent)
    assert card.read_bytes() == mine
    assert (card.parent / "model.safetensors").read_bytes() != weights


@pytest.mark.parametrize(
    "change", [lambda text: text + "\nmine", lambda text: "mine " + text, lambda text: "mine"]
)
def test_any_change_counts_as_edited(tmp_path: Path, change: object) -> None:
    policy().save(tmp_path / "policy")
    text = (tmp_path / "policy" / "README.md").read_text()
    assert is_unchanged(text.encode())
    assert not is_unchanged(change(text).encode())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("step", "shown"), [({}, "From run `r`."), ({"step": 7}, "From run `r` at step 7.")]
)
def test_card_of_a_provenance_with_and_without_a_step(step: dict[str, int], shown: str) -> None:
    card = make_card({"type": "flow"}, 3, {"provenance": {"run": "r", **step}})
    assert shown in card
