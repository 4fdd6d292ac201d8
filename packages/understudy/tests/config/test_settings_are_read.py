"""Every setting of a run, of each policy and of `profile` is read by code other than its
declaration and its checks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from understudy.cli.profile import ProfileConfig
from understudy.config.rollout import RolloutConfig
from understudy.config.train import TrainConfig
from understudy.policies.registry import own_type_names, policy_type
from understudy.policies.settings import PolicySettings
from understudy.testing.docs import ROOT
from understudy.testing.setting_reads import groups, unread

PACKAGES = ROOT / "packages"
NETWORKS = r"^policies/|^train/profiling/plan|^rollout/"


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    found: dict[str, str] = {}
    for top in PACKAGES.glob("*/src/understudy*"):
        for path in top.rglob("*.py"):
            name = str(path.relative_to(top))
            found[name] = found.get(name, "") + path.read_text(encoding="utf-8") + "\n"
    return found


def classes() -> tuple[dict[type, str], dict[str, set[type]]]:
    """Settings classes with the files whose `config` they are, and the names of their groups."""
    names = groups(TrainConfig) | groups(ProfileConfig)
    wanted = {each: "$^" for kinds in names.values() for each in kinds}
    wanted |= {
        TrainConfig: r"^(?!policies/)",
        ProfileConfig: r"^cli/profile",
        RolloutConfig: r"^(cli/)?rollout",
    }
    networks: dict[type, str] = {PolicySettings: r"^policies/|^train/|^load/|^cli/"}
    for name in own_type_names():
        kind = policy_type(name)
        room = "pi05" if name == "pi0" else name.split("-")[0]
        for each in (*kind.config.__mro__,):
            if issubclass(each, PolicySettings) and each is not PolicySettings:
                networks[each] = rf"^(policies/)?({room}|common)/"
    names["policy"] = set(networks)
    return wanted | networks, names


@pytest.mark.long
def test_every_setting_is_read(sources: Mapping[str, str]) -> None:
    assert set(unread(*classes(), sources)) == set()


@dataclass(frozen=True)
class PlantedConfig:
    every: int = 1
    used: int = 2
    checked: int = 3
    helped: int = 4
    alone: int = 5

    def problems(self) -> list[str]:
        return ["checked"] if self.checked else []

    def both(self) -> int:
        return self.helped

    def called_by_nobody(self) -> int:
        return self.alone


@dataclass(frozen=True)
class PlantedRoot:
    planted: PlantedConfig = field(default_factory=PlantedConfig)


@pytest.mark.long
def test_a_setting_that_nothing_reads_is_found(sources: Mapping[str, str]) -> None:
    """Also one whose name others share, one that is only checked, and one for a method that nobody
    calls.
    """
    wanted, names = classes()
    declared = Path(__file__).read_text(encoding="utf-8").split("@dataclass(frozen=True)\n")[1]
    reader = (
        "def run(config):\n    planted = config.planted\n    return planted.used + planted.both()\n"
    )
    found = unread(
        wanted | {PlantedConfig: "$^"},
        names | groups(PlantedRoot),
        {**sources, "config/planted.py": declared, "train/planted.py": reader},
    )
    assert set(found) == {f"PlantedConfig.{name}" for name in ("alone", "checked", "every")}
