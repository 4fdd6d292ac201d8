"""`understudy why [POLICY] TRACE`: why a policy does not grasp, of the trace of a rollout, a server
or a replay.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from understudy_base import ConfigError
from understudy_kit import Positional


@dataclass(frozen=True)
class WhyConfig:
    """Contradictions, errors per phase and joint, transitions of the gripper, likelihood of states
    and images, ages.
    """

    paths: Positional[tuple[str, ...]] = ()
    """A trace: the file of `serve --trace` or `replay --trace`, a result in a run's rollouts/, or a
    run, whose latest rollout it is. Before it a policy of any tool, with whose contract the states
    are compared in place of that of the trace.
    """
    head: str = ""
    """Norm head of that policy, where it has several."""
    page: str = ""
    """HTML page to write; the default is the file with the suffix .html, and the policy in its
    name.
    """

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return (
            []
            if 1 <= len(self.paths) <= 2
            else ["paths: required, a trace: understudy why [POLICY] TRACE"]
        )


def find_trace(path: Path) -> Path:
    """Return the file of a trace: of a rollout's result, or of the latest rollout of a run.

    Raises:
        ConfigError: the run has none.
    """
    if not path.is_dir():
        return path.with_suffix(".jsonl") if path.suffix == ".json" else path
    traces = sorted(path.glob("rollouts/*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not traces:
        raise ConfigError(f"trace: {path}/rollouts has none; record one: understudy rollout {path}")
    return traces[-1]


def why(config: WhyConfig) -> None:
    """Write the page, and print its findings."""
    from understudy import RunDir
    from understudy_kit import refuse_foreign, write_page
    from understudy_robot.cli.contract import ContractConfig, read_any
    from understudy_robot.contracts.trace import diagnose
    from understudy_robot.report.failures import failure_reasons, read_episodes
    from understudy_robot.report.why import findings, why_page

    trace = find_trace(Path(config.paths[-1]))
    words = [trace.stem]
    if len(config.paths) > 1:
        words += re.findall(r"\w+", config.paths[0][-80:])
    page = Path(config.page or trace.with_name(f"{'-'.join(words)}.html"))
    refuse_foreign(page)
    policy = None
    if len(config.paths) > 1:
        policy = read_any(config.paths[0], ContractConfig(paths=config.paths[:1]))
        robots = {name: robot for name, robot in policy.robots.items() if config.head in ("", name)}
        if len(robots) != 1:
            raise ConfigError(
                f"head: {config.head!r}: {config.paths[0]} has {', '.join(policy.robots)}; name one"
            )
        policy = replace(policy, robots=robots)
    try:
        diagnosis = diagnose(trace, policy)
    except (ValueError, OSError) as error:
        raise ConfigError(f"trace: {error}") from error
    episodes = read_episodes(trace)
    run = RunDir(trace.parent.parent) if trace.parent.name == "rollouts" else None
    reasons = failure_reasons(episodes, diagnosis, run) if episodes is not None else []
    write_page(page, why_page(diagnosis, trace.stem, reasons))
    lines = findings(diagnosis, reasons) or ["no finding"]
    print("\n".join([*lines, str(page)]))
