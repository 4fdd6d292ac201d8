"""`understudy rollout RUN`: success per task of a run's policy, played in a simulated environment."""

from pathlib import Path

from understudy.config.data import DataConfig
from understudy.config.rollout import RolloutConfig


def rollout(config: RolloutConfig) -> int:
    """The verb: play a run's policy, print success per task, write results and pictures to the run's rollouts/."""
    import torch

    from understudy.errors import ConfigError
    from understudy.rollout.files import write_result
    from understudy.rollout.play import rollout_saved_policy
    from understudy.train.checkpoint.run_dir import RunDir

    torch.set_num_threads(1)  # small matrices: a second thread gains little, and loses much beside a busy neighbour
    run = RunDir(Path(config.run))
    if not run.policy.is_dir():
        raise ConfigError(f"{run.policy}: no policy here; a finished `understudy train` writes it")
    # A folder that holds nothing but policy/ will do, where the world has the policy's own names.
    data, sources = DataConfig(), None
    if run.config.is_file():
        settings = run.settings()
        if not settings.mode_weights()["policy"]:
            raise ConfigError(f"{run.root}: nobody learnt to act: its mode is {settings.mode}")
        data, sources = settings.data, run.read_record().get("sources")
    result = rollout_saved_policy(run.policy, data, sources, config, config.swap_text, config.films)
    where = write_result(result, run.root / "rollouts")
    print(f"results and pictures: {where}")
    print(result.table())
    return 0
