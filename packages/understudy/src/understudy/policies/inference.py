"""A saved policy that acts on observations of a robot: one folder in, actions in the robot's units
out.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from understudy.compile import compile_blocks
from understudy.devices import torch_device
from understudy.policies import policy_folder
from understudy.policies.acting import (
    ActionBounds,
    Generation,
    Prepared,
    Reaction,
    action_facts,
    bound_actions,
    executing_actions,
    explained,
    plain,
    predict,
    react,
    respond,
    to_network,
)
from understudy.policies.capabilities.past import Past
from understudy.policies.capabilities.returns import check_acts
from understudy.policies.draws import Draws, generate_draws, make_draws
from understudy.policies.graphs import (
    GRAPH_MEMORY,
    Compile,
    Graphs,
    Kernels,
    can_capture,
    recorder_of,
    row_buckets,
)
from understudy.policies.observation_history import ObservationHistory
from understudy.policies.own_code.types import given_code
from understudy.policies.policy import Policy, build_saved
from understudy_base import ACTION, HEAD, RESPONSE, STATE, TASK, Batch, Record
from understudy_client import (
    Contract,
    Mismatch,
    ObservationCheck,
    RobotFacts,
    compare_robots,
    size_error,
)
from understudy_data import PromptMetadata


def load_policy(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    head: str | None = None,
    compute: Literal["float32", "bfloat16"] | None = None,
    normalization: Record | None = None,
    norm_asset: str = "",
    contract: Reaction = "warn",
    action_bounds: ActionBounds = "off",
    code: str | Path = "",
    compile: Compile = "off",
    max_batch: int = 1,
    graph_memory: int = GRAPH_MEMORY,
    kernels: Callable[[Policy], Kernels] | None = None,
) -> "RobotPolicy":
    """Load a policy from an exported folder, a run directory that holds one, the hub, or from
    released weights.

    Args:
        directory: the folder of `understudy export`, `RUN/policy`, `RUN`, or hf://OWNER/NAME on the
            hub; for pi05 and pi0 also a folder of LeRobot or openpi (docs/pi05.md).
        device: device of the arithmetic.
        head: norm head of the robot; needed where the policy has several.
        compute: precision of the arithmetic; None: that of the config, float32 where it has none.
            In bfloat16, linear layers hold their weights so, too.
        normalization: content of normalisation.json, in place of the folder's.
        norm_asset: ID of openpi's normalization, where the folder has several.
        contract: reaction to observations that differ from those of training (`RobotPolicy.check`):
            a `ContractWarning`, a `ContractError`, or nothing. A folder without contract.json is
            not checked.
        action_bounds: reaction to actions outside the recorded ones by more than a tenth of their
            range: "clamp" moves them to the nearest bound (`RobotPolicy.clamped`), "error" raises
            ValueError, "off" changes nothing.
        code: Python file to import for a type that is defined in a file. Without it that file is
            imported from the path of training alone, if it has not changed; a folder's copy never
            is.
        compile: "graphs" captures the passes in CUDA graphs (`policies/graphs.py`), "compiled"
            compiles the blocks of the network before. Chunks may differ from "off" by rounding.
        max_batch: most observations of a batch that graphs are captured for.
        graph_memory: bytes that the graphs may have; shapes beyond them run without.
        kernels: makes the functions to capture, from the policy.

    Raises:
        ConfigError: torch has no such device here, or it cannot compile or capture; names the cause
            and the remedy.
        ValueError: the folder holds no policy, one that predicts no actions or has no
            `action_bounds`, or one with a file that is not the one that was written
            (`ChecksumError`), or `head` is missing or unknown.
        OSError: it cannot be read.
    """
    if contract not in get_args(Reaction):
        raise ValueError(f"contract={contract!r}: must be one of {', '.join(get_args(Reaction))}")
    if compile not in get_args(Compile):
        raise ValueError(f"compile={compile!r}: must be one of {', '.join(get_args(Compile))}")
    torch_device(str(device))  # before anything is read
    if compile != "off":
        recorder_of(torch.device(device))
    folder = policy_folder.find_policy(directory)
    with given_code(code):
        saved = policy_folder.load(folder, normalization, norm_asset)
    if compute is not None:
        saved = saved._replace(config=replace(saved.config, compute=compute))
    facts = Contract.read_folder(folder) if (contract, action_bounds) != ("off", "off") else None
    check_acts(saved.config, folder)
    policy = build_saved(saved, folder, narrow=True).to(device).eval()
    robot = RobotPolicy(
        policy, saved.metadata, head, contract=facts, reaction=contract, action_bounds=action_bounds
    )
    if compile == "compiled":
        compile_blocks(policy.blocks(), torch.device(device))
    if compile != "off":
        chosen = None if kernels is None else kernels(policy)
        robot.capture(max_batch, memory=graph_memory, kernels=chosen)
    return robot


class RobotPolicy:
    """A policy for one robot.

    `policy` is the network, `metadata` the facts of config.json about the robot of `head`:
    `action_names`, `state_names`, `cameras`, `fps`.

    A policy with a history keeps the observations that it needs. `reset()` starts an episode, and
    each control step gives one observation, to `act` or to `observe`.
    """

    def __init__(
        self,
        policy: Policy,
        metadata: Record,
        head: str | None = None,
        *,
        contract: Contract | None = None,
        reaction: Reaction = "warn",
        action_bounds: ActionBounds = "off",
    ) -> None:
        """Choose the norm head.

        Args:
            policy: the network.
            metadata: content of config.json about the robots.
            head: norm head of the robot.
            contract: facts about the observations of training; None: nothing is checked.
            reaction: to observations that differ from them.
            action_bounds: see `load_policy`.

        Raises:
            ValueError: `head` is missing where there are several, or unknown; `contract` has no
                `action_bounds`.
        """
        names = policy.norm_heads
        if head is None and len(names) > 1:
            raise ValueError(
                f"the policy has the norm heads {', '.join(names)}: name the robot's with head="
            )
        if head is not None and head not in names:
            raise ValueError(f"head={head!r}: the policy has {', '.join(names)}")
        self.policy = policy
        self.head = names.index(head) if head is not None else 0
        self.metadata: dict[str, Any] = dict(metadata.get("heads", {}).get(names[self.head], {}))
        self.contract = contract
        facts = contract.robots.get(names[self.head]) if contract is not None else None
        self.facts: RobotFacts | None = facts
        """Facts about the training of this robot; None for a folder without contract.json."""
        self._reaction: Reaction = reaction
        self._checks: list[ObservationCheck] = []  # of each row of a batch
        self._mismatches: list[Mismatch] = []  # in this episode
        if contract is not None and facts is None:
            fix = "export the policy again with its own contract.json"
            react(
                reaction,
                [Mismatch("other robot", "", ", ".join(contract.robots), names[self.head], fix)],
            )
        if action_bounds not in get_args(ActionBounds):
            raise ValueError(
                f"action_bounds={action_bounds!r}: must be one of "
                f"{', '.join(get_args(ActionBounds))}"
            )
        self.action_bounds: ActionBounds = action_bounds
        self._bounds = action_facts(facts) if action_bounds != "off" else None
        self.clamped: dict[str, float] = {}
        """Dimensions of the last chunk that were moved to a bound, with the largest distance of
        each.
        """
        self._queue: deque[np.ndarray] = deque()
        # of each row; None: before the first `reset`
        self._histories: list[ObservationHistory] | None = None
        self._step = 0  # in this episode
        self._noise: tuple[int, int] | None = None

    @property
    def config(self) -> Any:
        """Config of the policy (`PolicyConfig` with the settings of its type)."""
        return self.policy.config

    @property
    def past(self) -> Past:
        """Past that the policy sees."""
        return self.policy.past

    @property
    def action_dim(self) -> int:
        """Width of this robot's actions."""
        return self.policy.normalizer.dims[ACTION][self.head]

    @property
    def num_past(self) -> int:
        """Observations in memory, of a policy that sees past ones: all of the seconds that it
        sees.
        """
        return max(map(len, self._histories or ()), default=0)

    def reset(self, *, seed: int | None = None, position: int = 0) -> None:
        """Start an episode: the policy forgets its past observations and the rest of the chunk in
        execution.

        Args:
            seed: seed of the noise; the chunk of control step k has the noise of `position` + k, as
                in rollouts and from a server. None: `act` draws the noise.
            position: position of the first step.
        """
        self._histories = []
        self._step = 0
        self.clamped = {}
        self._noise = None if seed is None else (seed, position)
        self._queue.clear()
        self._mismatches.clear()
        for check in self._checks:
            check.reset()

    def declare(self, robot: RobotFacts) -> list[Mismatch]:
        """Compare the statements of a robot about itself (`declare`) with training, once before it
        starts.

        Returns:
            The differences; each is also a warning, where the policy was loaded so.

        Raises:
            ContractError: there are differences, and the policy was loaded with
                `contract="strict"`.
        """
        mismatches = compare_robots(self.facts, robot) if self.facts is not None else []
        react(self._reaction, mismatches)
        return mismatches

    def check(self, observation: Mapping[str, Any], *, time: float | None = None) -> list[Mismatch]:
        """Compare an observation with those of training; `act` and `observe` do so by themselves.

        Units, orders of dimensions and cameras show after a few observations
        (`contract/observed.py`). Each difference is reported once in an episode, from `reset` on. A
        strict policy refuses all observations after one until then.

        Args:
            observation: see `act`.
            time: see `act`.

        Returns:
            The differences that this observation adds; each is also a warning, where the policy was
            loaded so.

        Raises:
            ContractError: there are differences, with `contract="strict"`.
        """
        if self.contract is None or self.facts is None or self._reaction == "off":
            return []
        single = isinstance(observation.get(TASK, ""), str)
        rows = 1 if single else len(observation[TASK])
        head = self.policy.norm_heads[self.head]
        while len(self._checks) < rows:
            self._checks.append(ObservationCheck(self.contract, head))
        mismatches: list[Mismatch] = []
        for row, check in enumerate(self._checks[:rows]):
            values: dict[str, Any] = dict.fromkeys(observation)
            for key, value in observation.items():
                if key in self.facts.input_keys:
                    value_of_row = value if single else value[row]
                    values[key] = plain(value_of_row)
            mismatches += check.look(values, time)
        self._mismatches += mismatches
        reacted_to = self._mismatches if self._reaction == "strict" else mismatches
        react(self._reaction, reacted_to)
        return mismatches

    def select_action(
        self, observation: Mapping[str, Any], *, horizon: int | None = None, **options: Any
    ) -> np.ndarray:
        """Return the next action of the chunk in execution; predict a new chunk where it is used
        up.

        Args:
            observation: observation of one moment, see `act`. It is needed in each control step.
            horizon: actions of each chunk to execute; None: all of it.
            options: further arguments of `act`.

        Returns:
            float32 [A], in the robot's units.

        Raises:
            ValueError: see `act`; `horizon` is not within the chunk, or the observation is a batch.
        """
        chunk = self.policy.config.chunk
        if horizon is not None and not 1 <= horizon <= chunk:
            raise ValueError(
                f"horizon is {horizon}: the policy predicts {chunk} actions, give 1 to {chunk}"
            )
        if not isinstance(observation.get(TASK, ""), str):
            raise ValueError(
                "select_action takes one observation, and task is a list; act() takes batches"
            )
        if self._queue:
            self.observe(observation, time=options.get("time"))
        else:
            self._queue.extend(self.act(observation, **options)[:horizon])
        return self._queue.popleft()

    def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
        """Add the observation of a control step without an action; of no effect for a policy
        without a history.

        Args:
            observation: see `act`.
            time: see `act`.

        Raises:
            ValueError, ContractError: see `act`.
        """
        self.check(observation, time=time)
        if self._windows():
            self._histories = self._remember(self._read(observation), time)
        self._step += 1

    def act(
        self,
        observation: Mapping[str, Any],
        *,
        time: float | None = None,
        steps: int = 10,
        generator: torch.Generator | None = None,
        previous: Any = None,
        delay: int = 0,
        horizon: int | None = None,
    ) -> np.ndarray:
        """Predict the next actions. A call that raises adds no observation: it may be repeated.

        With `previous` the new chunk continues the one that the robot is still executing (real-time
        chunking).

        Args:
            observation: numpy arrays or tensors by key, of one moment or of a batch. Keys are the
                policy's, or those of the robot's recordings. Images are uint8 [H, W, 3] or [3, H,
                W], states [S] of this robot (or padded to the policy's width), `task` is a string.
                A batch has one more dimension in front, and a list of strings. A camera that the
                robot lacks is left out. `prompt_metadata` may be {"quality": 5}.
            time: time of the observation in seconds, on any clock, for policies with a history:
                they see the frames nearest to the ages of training. None: each observation is a
                step of 1/fps of the recordings.
            steps: integration steps, where the policy samples.
            generator: CPU generator of the random numbers; None: those of `reset`, torch's default
                one without a seed.
            previous: numbers [n, A], or [B, n, A] of a batch: the rest of the executed chunk in the
                robot's units, at most T actions. Its first action is the one at the time of the
                observation. None: a chunk alone.
            delay: actions of `previous` that the robot executes before it gets the new chunk.
            horizon: actions of `previous` that guide the new chunk, at least `delay`. None: the
                first `delay` actions are given, which needs a policy trained for it
                (`policy.max_delay`).

        Returns:
            float32 [T, A], or [B, T, A] of a batch, in the robot's units, within `action_bounds`.
            The first action belongs to the time of the observation. The robot skips the first
            `delay` actions, which it has executed by then.

        Raises:
            ValueError: a missing key, a wrong shape or dtype, a state that is not finite, by name;
                an action that is not finite, whatever the `contract`, or outside, with
                `action_bounds="error"`; `delay` or `horizon` without `previous`; the policy cannot
                continue chunks, or not with this `delay` and `horizon`; with a history, no `reset`
                before, or a `time` that does not follow the last one.
            ContractError: the observation differs from those of training, with `contract="strict"`.
        """
        prepared = self.prepare(
            observation,
            time=time,
            steps=steps,
            generator=generator,
            previous=previous,
            delay=delay,
            horizon=horizon,
        )
        actions, self.clamped = self.bound(predict(self.policy, [prepared])[0])
        self.accept(prepared)  # the policy itself may refuse the call until here
        return actions

    def capture(
        self, max_batch: int = 1, *, memory: int = GRAPH_MEMORY, kernels: Kernels | None = None
    ) -> None:
        """Capture the passes of this robot's cameras as graphs; for arguments and errors see
        `load_policy`.
        """
        policy = self.policy
        policy.graphs = None
        if not can_capture(policy):
            return
        name = policy.norm_heads[self.head]
        twin = RobotPolicy(policy, {"heads": {name: self.metadata}}, name, reaction="off")
        twin.reset()
        config = policy.config
        blank: dict[str, Any] = {TASK: ""}
        for camera in self.metadata.get("cameras", config.cameras):
            blank[camera] = np.zeros((*config.image_size, 3), np.uint8)
        if config.state_dim:
            blank[STATE] = np.zeros(policy.normalizer.dims[STATE][self.head], np.float32)
        time = 0.0 if twin._windows() else None
        prepared = twin.prepare(blank, time=time, generator=torch.Generator())
        batch, draws = to_network(policy, [prepared])
        rows = row_buckets(max_batch)
        policy.graphs = Graphs(policy, batch, draws["noise"], rows, memory, kernels)

    def respond(
        self,
        observation: Mapping[str, Any],
        *,
        time: float | None = None,
        length: int | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> list[str]:
        """Generate the text that a policy with responses (`data.response`) answers with, such as
        the subtask of a planner.

        The observation enters no history, so `act` may get the same one.

        Args:
            observation: see `act`.
            time: see `act`.
            length: most tokens of a text, up to the `response_tokens` of training; None: those.
            temperature: divisor of the logits, from which a token is then drawn. 0: the most likely
                token each time.
            generator: CPU generator of the draws; None: those of `reset`, torch's default one
                without a seed.

        Returns:
            A text for each observation: one, or B of a batch. A text of `length` tokens may lack
            its end.

        Raises:
            ValueError: the policy generates no text, a number is out of range, or see `act`.
            ContractError: see `act`.
        """
        generation = Generation.check(self.policy, length, temperature)
        prepared = self.prepare(observation, time=time, generator=generator, generation=generation)
        return respond(self.policy, [prepared])[0]

    def bound(self, actions: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """Return actions within `action_bounds`, and the moved dimensions with the largest distance
        of each.

        Raises:
            ValueError: an action is outside, with `action_bounds="error"`.
        """
        if self._bounds is None:
            return actions, {}
        return bound_actions(actions, self._bounds, self.action_bounds)

    def prepare(
        self,
        observation: Mapping[str, Any],
        *,
        time: float | None = None,
        steps: int = 10,
        generator: torch.Generator | None = None,
        draws: Draws | None = None,
        previous: Any = None,
        delay: int = 0,
        horizon: int | None = None,
        generation: Generation | None = None,
    ) -> Prepared:
        """Check and convert an observation for `predict` or `respond` (`acting.py`), which take
        several robots' at once.

        For arguments and errors see `act`; `draws`, [B, ...] by name, are in place of a
        generator's. The observation enters the history with `accept`. With `generation` it is for
        `respond`.
        """
        policy = self.policy
        spec = policy.random_spec("act") if generation is None else generation.random_spec()
        if not spec and generation is not None:
            draws = {}
        if previous is None and (delay or horizon is not None):
            raise ValueError(
                f"delay is {delay}, horizon {horizon}, which need previous; give the actions in "
                "execution"
            )
        with explained(self._reaction, lambda: self.check(observation, time=time)):
            batch = self._read(observation)
        self.check(observation, time=time)
        rows = len(batch[TASK])
        single = isinstance(observation[TASK], str)
        executing = None
        if previous is not None:
            chunk = policy.config.chunk
            padded = policy.config.action_dim
            executing = executing_actions(previous, rows, single, chunk, self.action_dim, padded)
        histories = None
        if self._windows():
            histories = self._remember(batch, time)
            batch |= self._seen(batch, histories)
        if draws is None and generator is None and self._noise is not None:
            if not single:
                raise ValueError(
                    "a batch has no noise of reset(seed=), which is of one episode; give a "
                    "generator"
                )
            seed, position = self._noise
            purpose = "rollout" if generation is None else RESPONSE
            draws = make_draws(spec, seed, np.array([position + self._step]), purpose)
        if draws is None:
            draws = generate_draws(spec, rows, generator)
        return Prepared(
            batch,
            draws,
            executing,
            delay,
            horizon,
            steps,
            self.action_dim,
            single,
            histories,
            generation,
        )

    def predict(self, prepared: Sequence[Prepared]) -> list[np.ndarray]:
        """Predict the chunks of prepared observations, of this robot or of its copies; see
        `acting.predict`.
        """
        return predict(self.policy, prepared)

    def texts(self, prepared: Sequence[Prepared]) -> list[list[str]]:
        """Generate the texts of prepared observations, of this robot or of its copies; see
        `acting.respond`.
        """
        return respond(self.policy, prepared)

    def accept(self, prepared: Prepared) -> None:
        """Add a prepared observation to the history, once its chunk is there."""
        self._step += 1
        if prepared.histories is not None:
            self._histories = prepared.histories

    def _read(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Read the present observation as a batch on the CPU, without the past."""
        config = self.policy.config
        observation = self._standard(observation)
        if TASK not in observation:
            keys = sorted(observation)
            raise ValueError(
                f"the observation has {keys}, the policy needs {TASK!r}, '' for no instruction"
            )
        single = isinstance(observation[TASK], str)
        tasks = [observation[TASK]] if single else list(observation[TASK])
        batch: dict[str, Any] = {TASK: tasks}
        rows = len(tasks)
        batch |= PromptMetadata.of_robot(self.metadata).observed(observation, rows)

        def tensor(key: str) -> Tensor:
            value = torch.as_tensor(observation[key]).cpu()
            return value[None] if single else value

        if config.state_dim:
            if STATE not in observation:
                raise ValueError(
                    f"the observation has {sorted(observation)}, the policy needs {STATE!r}"
                )
            state = tensor(STATE).float()
            widths = {self.policy.normalizer.dims[STATE][self.head], config.state_dim}
            if state.ndim != 2 or state.shape[-1] not in widths:
                shape = tuple(state.shape[1:]) if single else tuple(state.shape)
                expected = " or ".join(map(str, sorted(widths)))
                raise ValueError(
                    f"{STATE} is {shape}, the policy needs {expected} values per observation"
                )
            values = state[:, : self.policy.normalizer.dims[STATE][self.head]]
            if not values.isfinite().all():
                raise ValueError(
                    f"{STATE} holds {values[~values.isfinite()][0].item()}: every value must be "
                    "finite"
                )
            batch[STATE] = torch.nn.functional.pad(
                state, (0, max(0, config.state_dim - state.shape[-1]))
            )
        lacking = [camera for camera in config.cameras if camera not in observation]
        if lacking and set(lacking) & set(self.metadata.get("cameras", config.cameras)):
            raise ValueError(
                f"the observation has {sorted(observation)}, the policy needs {lacking[0]!r}"
            )
        for camera in config.cameras:
            if camera in lacking:
                batch[camera] = torch.zeros((rows, 3, *config.image_size), dtype=torch.uint8)
                batch[f"{camera}_is_missing"] = torch.ones(rows, dtype=torch.bool)
                continue
            image = tensor(camera)
            if image.ndim == 4 and image.shape[-1] == 3 and image.shape[1] != 3:
                image = image.permute(0, 3, 1, 2)
            # other shapes are the policy's to refuse
            height, width = image.shape[-2:] if image.ndim == 4 else (1, 1)
            if error := size_error(height, width, self._recorded_size(camera)):
                raise ValueError(f"{camera} is {width}x{height}: {error}; send images as recorded")
            batch[camera] = image.contiguous()
        if len(self.policy.norm_heads) > 1:
            batch[HEAD] = torch.full((rows,), self.head, dtype=torch.int64)
        return batch

    def _recorded_size(self, camera: str) -> tuple[int, int]:
        """Height and width of a camera's images in training, or of the network's where they are
        unknown.
        """
        facts = self.facts.cameras.get(camera) if self.facts is not None else None
        if facts is not None and facts.size[0]:
            height, width = facts.size
        else:
            height, width = self.policy.config.image_size
        return height, width

    def _standard(self, observation: Mapping[str, Any]) -> Record:
        """Give the values under the robot's own keys the policy's keys; those that are there
        already stay.
        """
        if self.facts is None:
            return observation
        names = {key: camera.key for key, camera in self.facts.cameras.items()}
        if self.facts.state is not None:
            names[STATE] = self.facts.state.key
        added = {
            key: observation[robot_key]
            for key, robot_key in names.items()
            if key not in observation and robot_key in observation
        }
        return {**observation, **added}

    def _windows(self) -> dict[str, tuple[float, ...]]:
        """Times of each key of which the policy sees the past."""
        image_times, state_times = self.past.times(self.metadata.get("fps"))
        times = {}
        if image_times:
            times = dict.fromkeys(self.policy.config.cameras, image_times)
        if state_times:
            times[STATE] = state_times
        return times

    def _remember(self, batch: Batch, time: float | None) -> list[ObservationHistory]:
        """Return the history of each row with a batch added. Those of the policy stay as they
        are.
        """
        rows = len(batch[TASK])
        if self._histories is None:
            raise ValueError(
                "the policy sees past observations; call reset() at the start of each episode"
            )
        windows = {
            key: times for key, times in self._windows().items() if f"{key}_is_missing" not in batch
        }
        fps = self.past.step_rate(self.metadata.get("fps"), time)
        copies = [history.copy() for history in self._histories]
        copies = copies or [ObservationHistory(windows, fps) for _ in range(rows)]
        if len(copies) != rows:
            raise ValueError(
                f"{rows} observations after {len(copies)}; call reset() to change their number"
            )
        for row, history in enumerate(copies):
            history.add({key: batch[key][row].numpy() for key in windows}, time)
        return copies

    def _seen(self, batch: Batch, histories: Sequence[ObservationHistory]) -> dict[str, Any]:
        """Windows [B, T, ...] of the histories of a batch, with `<key>_is_pad` [B, T]."""
        windows = [history.windows() for history in histories]
        seen: dict[str, Any] = {}
        for key in windows[0]:
            seen[key] = torch.from_numpy(np.stack([window[key] for window in windows]))
        for key, times in self._windows().items():
            if f"{key}_is_missing" in batch:
                seen[key] = batch[key][:, None].repeat(1, len(times), 1, 1, 1)
                seen[f"{key}_is_pad"] = torch.ones(len(histories), len(times), dtype=torch.bool)
        return seen
