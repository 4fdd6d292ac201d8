"""`understudy replay RUN`: a recorded episode through the server, beside the open-loop validation
of the same frames.

The open-loop side reads frames, normalizes and computes as a validation does. The other side sends
the recorded images and states to a server on loopback, as a robot would. Equal actions show that
both see the same inputs.
"""

import json
import logging
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy_base import ACTION, PROMPT_METADATA, STATE, TASK, Batch, ConfigError
from understudy_kit import Ge, Positional
from understudy_robot.serve.config import ServeConfig

if TYPE_CHECKING:
    import numpy as np

    from understudy import RobotPolicy, TrainState
    from understudy_data import ValidationData


@dataclass(frozen=True)
class ReplayConfig:
    """Send a validation episode through the policy server, and compare the actions with open-loop
    validation.
    """

    run: Positional[str] = ""
    """Run directory; its policy/ is served."""
    episode: Annotated[int, Ge(-1)] = -1
    """Id of a validation episode; -1: the first one."""
    source: str = ""
    """Source of the run's data; needed where there are several."""
    checkpoint: Annotated[int, Ge(0)] | Literal["", "latest", "best"] = ""
    """Checkpoint of the open-loop side; the default is the one from which policy/ was exported."""
    contract: Literal["warn", "strict", "off"] = "warn"
    """Reaction of the server to observations that differ from those of training."""
    trace: str = ""
    """New file to write: observations, chunks and recorded actions, for `understudy why`."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        return [] if self.run else ["run: required, the directory of a run: understudy replay RUN"]


@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    Attributes:
        episode: its id.
        frames: its length.
        chunks: number of compared chunks.
        equal: whether all are equal to the bit.
        parts_at: first control step whose actions differ; None where none does.
        difference: largest difference of an action in the robot's units, and its dimension; of all
            steps.
        mismatches: differences from training that the server found, a line each.
    """

    episode: int
    frames: int
    chunks: int
    equal: bool
    parts_at: int | None
    difference: tuple[float, str]
    mismatches: tuple[str, ...]


def replay(config: ReplayConfig) -> int:
    """Compare; returns 0 where all actions are equal to the bit, else 1."""
    from understudy import RunDir, load_policy, open_checkpoint

    logging.getLogger("understudy.serve").setLevel(logging.ERROR)  # the result has its lines
    folder = RunDir(Path(config.run)).require_policy()
    with open_checkpoint(Path(config.run), config.checkpoint or _exported_step(folder)) as (
        state,
        validation,
    ):
        number = _choose_source(config, validation)
        head = validation.heads[int(validation.head_of[number])]
        try:
            robot = load_policy(folder, head=head or None, contract=config.contract)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        outcome = replay_episode(state, validation, robot, number, config)
    text = json.dumps(asdict(outcome)) if config.json else _format(outcome)
    print(text)
    return 0 if outcome.equal else 1


def replay_episode(
    state: "TrainState",
    validation: "ValidationData",
    robot: "RobotPolicy",
    source: int,
    config: ReplayConfig,
) -> Replay:
    """Send an episode through a server, and compare its actions.

    Args:
        state: with the weights of the open-loop side.
        validation: the validation frames.
        robot: the policy that is served.
        source: index of the source in `validation`.
        config: settings.

    Raises:
        ConfigError: no such validation episode. DatasetError: a frame cannot be read. RemoteError:
            the server refuses an observation, or a chunk of it is not finite.
    """
    import numpy as np

    from understudy import EpisodeActions
    from understudy_client import ContractWarning, Noise, RemoteError, RemotePolicy
    from understudy_data import EpisodeDataset
    from understudy_robot.serve.engine import open_trace
    from understudy_robot.serve.server import running_server

    episode = _choose_episode(config.episode, source, validation)
    dataset = validation.datasets[source]
    length = int(dataset.catalog.episodes.lengths[dataset.catalog.episodes.row_of(episode)])
    expected = _open_loop(state, validation, source, episode)
    task = next(task for _, _, task in expected.values())
    # A robot also sees the frames that a selection leaves out.
    keys = [key for key in dataset.keys if key not in dataset.missing_cameras]
    recorded = EpisodeDataset(
        dataset.catalog, episodes=[episode], keys=keys, prompt_metadata=dataset.prompts.names
    )
    actions_of = EpisodeDataset(dataset.catalog, episodes=[episode], keys=[ACTION])
    executed = actions_of.batch(np.full(length, episode), np.arange(length))[ACTION].numpy()
    trace = open_trace(config.trace, robot)
    names = validation.action_names(source)
    largest = 0.0
    dimension = ""
    parts_at = None
    chunks = 0
    options = ServeConfig(policy=config.run, port=0, contract=config.contract, warm_up=0)
    with (
        warnings.catch_warnings(),
        running_server(robot, options) as server,
        RemotePolicy(server.address) as policy,
    ):
        warnings.simplefilter("ignore", ContractWarning)  # they are in the result
        policy.reset()
        for frame in range(length):
            observation = _observation(
                recorded.batch(np.array([episode]), np.array([frame])), robot
            )
            if frame not in expected:
                policy.observe(observation | {TASK: task})
                continue
            position, actions, task = expected[frame]
            observation[TASK] = task
            noise = Noise(state.seed, position, "open loop")
            try:
                served = policy.act(observation, steps=EpisodeActions.STEPS, noise=noise)
            except ValueError as error:
                text = (
                    f"episode {episode}, step {frame}: the server refuses the observation: {error}"
                )
                raise RemoteError(text, "refused") from error
            chunks += 1
            if trace is not None:
                trace.add(
                    f"episode {episode}",
                    frame,
                    observation,
                    served[: length - frame],
                    0.0,
                    executed[frame : frame + len(served)],
                )
            steps = min(len(actions), length - frame)
            apart = np.abs(served[:steps].astype(np.float64) - actions[:steps, : served.shape[1]])
            if (
                not np.array_equal(served[:steps], actions[:steps, : served.shape[1]])
                and parts_at is None
            ):
                parts_at = frame + int(np.flatnonzero(apart.any(1))[0])
            if apart.max() > largest:
                largest = float(apart.max())
                dimension = names[int(apart.max(0).argmax())]
        mismatches = tuple(map(str, policy.mismatches))
    if trace is not None:
        trace.close()
    return Replay(
        episode, length, chunks, parts_at is None, parts_at, (largest, dimension), mismatches
    )


def _open_loop(
    state: "TrainState", validation: "ValidationData", source: int, episode: int
) -> "dict[int, tuple[int, np.ndarray, str]]":
    """Return the chunks of an open-loop validation by frame: identity of its noise, actions [T, A],
    instruction.
    """
    from understudy import EpisodeActions

    mode = state.modes.val_mode()
    if mode != "policy":
        raise ConfigError(
            f"mode: the run is validated in the mode {mode!r}, and a server computes 'policy'"
        )
    chunks = EpisodeActions(state, validation).chunks(source, episode)
    return {frame: (identity, actions, task) for frame, identity, actions, task in chunks}


def _observation(batch: Batch, robot: "RobotPolicy") -> dict[str, Any]:
    """Return the present of a sample as a robot sends it: recorded images [H, W, 3], the state,
    prompt metadata.
    """
    from understudy_data import PromptMetadata

    config = robot.config
    keys = list(config.cameras)
    if config.state_dim:
        keys.append(STATE)
    values: dict[str, Any] = {}
    for key in keys:
        missing = batch.get(f"{key}_is_missing")
        if key not in batch or (missing is not None and bool(missing[0])):
            continue
        value = batch[key][0]
        is_image = key != STATE
        dimensions = 3 if is_image else 1
        if value.ndim > dimensions:  # a window; the present is last
            value = value[-1]
        if is_image:
            value = value.permute(1, 2, 0).contiguous()
        values[key] = value.numpy()
    if lines := batch.get(PROMPT_METADATA, [""])[0]:
        metadata = dict(line.split(": ", 1) for line in lines.splitlines())
        names = robot.metadata.get(PROMPT_METADATA, {}).get("names", ())
        labels = {name: PromptMetadata.label(name) for name in names}
        values[PROMPT_METADATA] = {
            name: metadata[label] for name, label in labels.items() if label in metadata
        }
    return values


def _exported_step(folder: Path) -> "int | str":
    from understudy_client import Contract

    contract = Contract.read_folder(folder)
    return contract.provenance.get("step", "latest") if contract is not None else "latest"


def _choose_source(config: ReplayConfig, validation: "ValidationData") -> int:
    names = list(validation.names)
    if not config.source and len(names) == 1:
        return 0
    if config.source not in names:
        raise ConfigError(
            f"source: {config.source!r}: name one with validation episodes: {', '.join(names)}"
        )
    return names.index(config.source)


def _choose_episode(episode: int, source: int, validation: "ValidationData") -> int:
    import numpy as np

    episodes = np.unique(validation.episode[validation.source == source])
    if episode < 0:
        return int(episodes[0])
    if episode not in episodes:
        some = ", ".join(map(str, episodes[:8].tolist()))
        raise ConfigError(
            f"episode: {episode} is no validation episode of {validation.names[source]}; there are "
            f"{some}"
        )
    return episode


def _format(outcome: Replay) -> str:
    lines = [
        f"episode {outcome.episode}: {outcome.frames} frames, {outcome.chunks} chunks through the "
        "server"
    ]
    if outcome.equal:
        lines.append("all actions are those of open-loop validation to the bit")
    else:
        size, dimension = outcome.difference
        lines.append(
            f"the actions part at step {outcome.parts_at}; the largest difference is {size:.6g} "
            f"({dimension})"
        )
    return "\n".join([*lines, *outcome.mismatches])
