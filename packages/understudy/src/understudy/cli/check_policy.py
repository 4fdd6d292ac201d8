"""`understudy check-policy`: proofs of a policy, a line for each."""

import json
from dataclasses import dataclass, field

from understudy_kit import Positional

FAILED = 1
"""Exit code where a proof failed."""


@dataclass(frozen=True)
class CheckPolicyConfig:
    """Prove of any policy that padding, noise, sums and saving are sound: exit code 1 if not."""

    policy: Positional[str] = ""
    """MODULE:NAME or FILE.py:NAME of a policy, of its `PolicyType`, or of a function without
    arguments that returns it, or returns (policy, batch); the name of a type (`flow`); a folder of
    a policy or a run. Code that is named here is imported.
    """
    settings: dict[str, str] = field(default_factory=dict)
    """Settings of a type, as in `width 64 image_size "[32, 32]"`; `size` is `tiny` where there is
    one.
    """
    data: str = ""
    """Dataset whose first samples are the batch; by default one is made from the needs that the
    policy declares.
    """
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        example = "understudy check-policy my_policy.py:MINE"
        problems = [] if self.policy else [f"policy: required, a policy: {example}"]
        for name, text in self.settings.items():
            try:
                json.loads(text if text.startswith("[") else "0")
            except ValueError:
                problems.append(f"settings: {name} {text}: a list is written as in [32, 32]")
        return problems


def check_policy(config: CheckPolicyConfig) -> int:
    """Make the proofs and print them."""
    from understudy.train.proofs.check import check_policy as prove

    settings = {}
    for name, text in config.settings.items():
        settings[name] = json.loads(text) if text.startswith("[") else text
    report = prove(config.policy, settings=settings, data=config.data)
    print(json.dumps(report.as_json(), ensure_ascii=False) if config.json else report)
    return 0 if report.passed else FAILED
