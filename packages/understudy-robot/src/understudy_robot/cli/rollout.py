"""Command `rollout`: a policy in a simulated environment."""

import shutil
from pathlib import Path

from understudy import DataConfig, RolloutConfig
from understudy_base import ConfigError, temporary_folder


def rollout(config: RolloutConfig) -> int:
    """Run a policy in an environment; print success per task, write results, images and a trace to
    rollouts/.
    """
    import torch

    from understudy import RunDir
    from understudy_robot.rollout.files import write_result
    from understudy_robot.rollout.play import rollout_saved_policy

    # for small matrices a second thread gains little, and costs much on a busy machine
    torch.set_num_threads(1)
    run = RunDir(Path(config.run))
    run.require_policy()
    # A folder with only policy/ suffices if the environment has the policy's own names.
    data = DataConfig()
    sources = None
    if run.config.is_file():
        settings = run.settings()
        if not settings.modes.weights()["policy"]:
            raise ConfigError(
                f"{run.root}: the run trained no policy to act: its mode is {settings.mode}"
            )
        data = settings.data
        sources = run.read_record().get("sources")
    with temporary_folder() as folder:
        trace = folder / "trace.jsonl"
        result = rollout_saved_policy(
            run.policy, data, sources, config, config.swap_text, config.films, trace
        )
        where = write_result(result, run.root / "rollouts")
        if trace.exists():
            shutil.move(trace, where.with_suffix(".jsonl"))
    print(f"results and images: {where}")
    print(result.table())
    if run.config.is_file():
        print(f"understudy report {config.run} adds them to the run's page, {run.report}")
    return 0
