"""What only some policies have is found by its members; the config of a type is made of settings
and facts.
"""

import pickle
import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import pytest

from understudy.policies.capabilities import CAPABILITIES
from understudy.policies.capabilities.files import files_of
from understudy.policies.capabilities.folders import ReadsFolders, stored_name
from understudy.policies.capabilities.future import ImaginesImages, images_ahead
from understudy.policies.capabilities.images import fit_images, resize_of, way_of_resizing
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.capabilities.start import (
    ChecksStart,
    chosen_normalization,
    figures_of_weights,
    stored_chunk,
    weights_of,
)
from understudy.policies.capabilities.texts import learns_responses
from understudy.policies.common.facts import PolicyConfig
from understudy.policies.pi05.config import PI05
from understudy.policies.registry import PolicyType, policy_type
from understudy.policies.settings import PolicySettings
from understudy.testing.docs import ROOT


@dataclass(frozen=True, kw_only=True)
class PlainSettings(PolicySettings):
    type: Literal["plain"] = "plain"
    hidden: int = 16


def build(config: Any, normalization: Any) -> None:
    """Build nothing."""


PLAIN = PolicyType(PlainSettings, build)


def test_plain_settings_have_no_capability_and_the_answers_of_none() -> None:
    plain = PlainSettings()
    assert [each for each in CAPABILITIES if isinstance(plain, each)] == []
    assert (dict(files_of(plain)), weights_of(plain), figures_of_weights(plain)) == ({}, "", "")
    assert (stored_chunk(plain), images_ahead(plain, 4), stored_name(plain, "a")) == (None, (), "a")
    assert (resize_of(plain), way_of_resizing(plain)) == (None, "area")
    assert fit_images(plain, {"camera": (8, 8)}) is plain
    assert (predicts_actions(plain), learns_responses(plain)) == (True, False)
    assert Past.of(plain) == Past()
    computed = {"action": 1}
    assert chosen_normalization(plain, computed) is computed


def test_capabilities_of_pi05_are_found_by_its_members() -> None:
    settings = PI05.settings(history=(1.0, 2.0), weights="base")
    assert Past.of(settings) == Past(images=(-2.0, -1.0, 0.0))
    assert (weights_of(settings), set(files_of(settings))) == ("base", {"tokenizer", "fast"})
    assert not isinstance(settings, ImaginesImages)
    kind = policy_type("pi05").load()
    assert isinstance(kind, ReadsFolders)
    assert isinstance(kind, ChecksStart)
    assert not isinstance(policy_type("flow").load(), ReadsFolders)


def test_a_part_of_a_capability_is_refused() -> None:
    """Nothing would call the method."""

    @dataclass(frozen=True, kw_only=True)
    class Partial(PolicySettings):
        def images_ahead(self, chunk: int) -> tuple[int, ...]:
            return (chunk,)

    with pytest.raises(TypeError, match=r"images_ahead.*ImaginesImages.*ALWAYS"):
        PolicyType(Partial, build)

    @dataclass(frozen=True, kw_only=True)
    class Whole(Partial):
        ALWAYS: ClassVar[tuple[str, ...]] = ()

    PolicyType(Whole, build)


def test_a_config_joins_settings_and_facts() -> None:
    config = PLAIN.make_config(PlainSettings(hidden=3), action_dim=2, chunk=5)
    assert isinstance(config, PlainSettings)
    assert isinstance(config, PolicyConfig)
    assert (config.hidden, config.action_dim, config.chunk, config.type) == (3, 2, 5, "plain")
    assert pickle.loads(pickle.dumps(config)) == config
    assert PolicyType(PlainSettings, build).config is PLAIN.config

    @dataclass(frozen=True)
    class Joined(PlainSettings, PolicyConfig):
        """The same by hand."""

    by_hand = Joined(action_dim=2, chunk=5, hidden=3)
    assert list(asdict(config).items()) == list(asdict(by_hand).items())
    assert PolicyType(PlainSettings, build, config=Joined).config is Joined


def test_the_page_lists_each_capability_with_its_members() -> None:
    page = (ROOT / "docs/own_policies.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([A-Z]\w+)` \| ([^|]*`[^|]+) \|[^|]+\|$", page, re.MULTILINE))
    assert list(rows) == [each.__name__ for each in CAPABILITIES]
    for each in CAPABILITIES:
        names = {name for name in vars(each) if not name.startswith("_")}
        names |= set(getattr(each, "__annotations__", ()))
        assert set(re.findall(r"`(\w+)", rows[each.__name__])) - {"us"} == names
