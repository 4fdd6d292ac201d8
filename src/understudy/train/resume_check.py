"""What it means that a run goes on with other settings, processes or versions: told before anything is trained.

Compared with what the latest checkpoint was trained with (its state.json says), so an edited config.yaml is noticed as
a flag is. Every setting is in one of two tables: `CONSEQUENCES`, with what follows from changing it, or `REFUSED`,
with why that would not be the same run any more.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from understudy.config.schema import differences
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.optim.lr_schedule import lr_factor

NONE = "the training does not notice"
SUMS = "same samples, noise and times; sums round otherwise, so losses agree to rounding and not to the bit"
ONWARDS = "holds from here on; the steps before were trained with the old value"
SAMPLES = "the samples are the same, what is done to them from here on is not"
PLACES = "the dataset read there is the same by its fingerprint"
SKIPPED = "the episodes that are left out were decided when the run began"
SCALED = "the policy was given its normalisation when the run began"
HEAD = f"it decides which sources are normalised together, and {SCALED}"

# Pattern of the setting -> what follows. The first that fits counts.
CONSEQUENCES = {
    "out": NONE,
    "data.root": "the dataset there is the same by its fingerprint",
    "data.video_path": PLACES,
    "data.data_path": PLACES,
    "data.version": PLACES,
    "data.keep": "the frames that it leaves are the same",
    "data.sources.*.root": "the dataset there is the same by its fingerprint",
    "data.sources.*.video_path": PLACES,
    "data.sources.*.data_path": PLACES,
    "data.sources.*.version": PLACES,
    "data.sources.*.on_incomplete_episode": SKIPPED,
    "data.on_incomplete_episode": SKIPPED,
    "data.sources.*.keep": "the frames that it leaves are the same",
    "data.sources.*.weight": "",  # `review` says
    "data.cache*": NONE,
    "data.changed_files": "where files of the dataset changed, what follows is trained on what is there",
    "data.on_bad_frame": "matters where a picture or row cannot be read; the samples are the same elsewhere",
    "steps": "",  # `_learning_rate` says
    "schedule.*": "",
    "optim.lr": "",
    "batch": "",  # `_batch` says
    "micro_batch": SUMS,
    "max_skipped": NONE,
    "device": SUMS,
    "precision": f"the checkpoint's float32 values are taken over bit for bit; {SUMS}",
    "parallel.timeout": NONE,
    "parallel.*": SUMS,
    "compile": SUMS,
    "activation_checkpoint": "the same numbers, with other memory and time",
    "threads": SUMS,
    "augment.*": SAMPLES,
    "policy.draws": ONWARDS,
    "optim.ema.*": "the average forgets at another rate from here on",
    "optim.lr_scale": ONWARDS,
    "optim.weight_decay_of": ONWARDS,
    "optim.loss_weights": ONWARDS,
    "optim.beta*": ONWARDS,
    "optim.eps": ONWARDS,
    "optim.weight_decay": ONWARDS,
    "optim.clip": ONWARDS,
    "checkpoint_every": NONE,
    "keep": NONE,
    "keep_best": NONE,
    "async_save": NONE,
    "val_every": NONE,
    "val_weights": "held-out losses are those of the other weights from here on; the training does not notice",
    "val_frames": "held-out losses are those of another sample of frames from here on; the training does not notice",
    "val_open_loop": NONE,
    "rollout.*": "holds for what is played from here on; the training does not notice",
    "log_every": NONE,
    "trackers": "a new one gets everything from the first step on",
    "loader_threads": NONE,
    "memory": NONE,
    "report": NONE,
}

# Pattern of the setting -> why not.
REFUSED = {
    "seed": "it decides the order and every draw",
    "data.normalise": SCALED,
    "data.stats": SCALED,
    "data.delta": SCALED,
    "data.robot_type": HEAD,
    "data.control_mode": HEAD,
    "data.sources.*.stats": SCALED,
    "data.sources.*.delta": SCALED,
    "data.sources.*.robot_type": HEAD,
    "data.sources.*.control_mode": HEAD,
    "data.sources.*.name": "it is what the source is known by",
    "data.*": "other samples at every position",
    "mode": "it decides what each position is a lesson in, and whether the network predicts states",
    "policy.*": "the weights are those of another network",
    "optim.freeze": "what was frozen has no moments, what was trained has",
    "init_from": "the run has begun",
}


def review(
    root: object, then: TrainConfig, now: TrainConfig, state: Mapping[str, Any] | None, here: Mapping[str, Any]
) -> list[str]:
    """What changes when a run goes on, and what follows from it: one line each, none when it goes on as it was.

    Args:
        root: the run, for messages.
        then: settings of the latest checkpoint, or of the beginning. now: those to go on with.
        state: of the latest checkpoint; None: there is none.
        here: `world` and `versions` of now, as a checkpoint's state has them.
    Raises:
        ConfigError: with all changes that would make it another run.
    """
    changed = differences(then, now)
    if len(then.data.sources) != len(now.data.sources):
        changed = {path: values for path, values in changed.items() if not path.startswith("data.sources")}
        changed["data.sources"] = f"{len(then.data.sources)} sources", f"{len(now.data.sources)} sources"
    ema = changed.get("optim.ema.decay", (1, 1))
    refused = [
        f"{path}: {old} -> {new}: {reason}"
        for path, (old, new) in changed.items()
        if (reason := _refusal(path, ema)) is not None
    ]
    done = state["step"] if state is not None else 0
    if now.steps < done and "steps" in changed:
        refused.append(f"steps: {then.steps} -> {now.steps}: {done} are done already")
    shares = [path for path in changed if fnmatchcase(path, "data.sources.*.weight")]
    if shares and state is None:
        refused.append(f"{shares[0]}: nothing is saved yet behind which shares could change")
    if refused:
        head = f"{root}: a run cannot go on with other settings; start a new one with another --out"
        raise ConfigError("\n".join([head, *(f"  {line}" for line in refused)]))
    lines = []
    for path, (old, new) in changed.items():
        what = _of(CONSEQUENCES, path)
        lines.append(f"{path}: {old} -> {new}" + (f": {what}" if what else ""))
    if any(path in ("steps", "optim.lr") or path.startswith("schedule.") for path in changed):
        lines += _learning_rate(then, now, done)
    if state is not None:
        if shares:
            lines.append(
                f"shares: as the weights say from position {state['position']} on; each source is read on from where "
                "it was, every frame once per its own epoch; a lane no longer keeps to one process"
            )
        if "batch" in changed:
            lines += _batch(now, state)
        if state["world"] != here["world"]:
            lines.append(f"processes: {state['world']} -> {here['world']}: {SUMS}")
        for name, version in state["versions"].items():
            if version != here["versions"][name]:
                lines.append(f"{name}: {version} -> {here['versions'][name]}: another version may round otherwise")
    return lines


def _refusal(path: str, ema: tuple[float, float]) -> str | None:
    if path == "optim.ema.decay" and not all(ema):
        return "the average has to be kept from the beginning"
    return None if _of(CONSEQUENCES, path) is not None else _of(REFUSED, path) or "unknown"


def _of(table: Mapping[str, str], path: str) -> str | None:
    # A setting that is a mapping has leaves of its own ("optim.lr_scale.eyes.*").
    return next((text for name, text in table.items() if fnmatchcase(path, name) or path.startswith(name + ".")), None)


def _learning_rate(then: TrainConfig, now: TrainConfig, done: int) -> list[str]:
    """What becomes of the learning rate, in figures."""

    def at(config: TrainConfig, step: int) -> float:
        return config.optim.lr * lr_factor(step, config.schedule, config.steps)

    lines = []
    if (old := at(then, done)) != (new := at(now, done)):
        lines.append(f"learning rate: jumps from {old:.3g} to {new:.3g} at step {done + 1}, onto another curve")
    if now.schedule.kind == "constant":
        return [*lines, f"learning rate: {now.optim.lr:g} to the end, step {now.steps}"]
    end, last = now.schedule.steps or now.steps, at(now, now.steps - 1)
    if now.steps > end:
        rest, stays = now.steps - max(end, done), at(now, end)
        nothing = ", so nothing is learnt in them" if stays == 0 else ""
        lines.append(
            f"learning rate: its decay ends at step {end} as before, and stays at {stays:g} for the last {rest} steps"
            f"{nothing}; --schedule.steps {now.steps} stretches it"
        )
    elif now.steps < end:
        lines.append(f"learning rate: the run ends at {last:.3g}, before the end of the decay at step {end}")
    else:
        lines.append(f"learning rate: its decay ends with the run, at step {end}")
    return lines


def _batch(now: TrainConfig, state: Mapping[str, Any]) -> list[str]:
    position, left = state["position"], now.steps - state["step"]
    return [
        f"batch: positions keep their samples, noise and times; {left} steps of {now.batch} samples are left, from "
        f"position {position} on; warm-up and decay still count steps"
    ]
