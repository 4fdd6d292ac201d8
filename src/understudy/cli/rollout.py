"""`understudy rollout RUN`: success per task of a run's policy in a simulated environment."""

from pathlib import Path

from understudy.config.data import DataConfig
from understudy.config.rollout import RolloutConfig


def rollout(config: RolloutConfig) -> int:
    """Run a policy in an environment; print success per task, write results and images to the run's rollouts/."""
    import torch

    from understudy.errors import ConfigError
    from understudy.rollout.files import write_result
    from understudy.rollout.play import rollout_saved_policy
    from understudy.train.checkpoint.run_dir import RunDir

    torch.set_num_threads(1)  # for small matrices a second thread gains little, and costs much on a busy machine
    run = RunDir(Path(config.run))
    run.require_policy()
    # A folder with only policy/ suffices if the environment has the policy's own names.
    data, sources = DataConfig(), None
    if run.config.is_file():
        settings = run.settings()
        if not settings.mode_weights()["policy"]:
            raise ConfigError(f"{run.root}: the run trained no policy to act: its mode is {settings.mode}")
        data, sources = settings.data, run.read_record().get("sources")
    result = rollout_saved_policy(run.policy, data, sources, config, config.swap_text, config.films)
    where = write_result(result, run.root / "rollouts")
    print(f"results and images: {where}")
    print(result.table())
    return 0
