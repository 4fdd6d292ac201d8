"""Checks on resume: settings, processes and versions that changed, and the consequence of each
change.

They are compared with those of the latest checkpoint (its state.json), so an edited config.yaml is
noticed as well as a flag. Each setting declares its consequence (`config/on_resume.py`). The lines
are printed before training starts.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

from understudy.config.train import TrainConfig
from understudy.optim.lr_schedule import lr_factor
from understudy_base import ConfigError, Record
from understudy_kit import Fixed, OnResume, differences

JUMP = 10.0
"""Largest factor by which a resumed run may raise the learning rate from one step to the next."""


def check_resume(
    root: object, then: TrainConfig, now: TrainConfig, state: Record | None, present: Record
) -> list[str]:
    """Return one line per change and its consequence; no line if nothing changed.

    Args:
        root: the run directory, for messages.
        then: settings of the latest checkpoint, or of the start.
        now: settings to resume with.
        state: state of the latest checkpoint; None if there is none.
        present: the current `world` and `versions`, as in a checkpoint's state.

    Raises:
        ConfigError: lists all changes that would make it a different run.
    """
    changed = differences(then, now)
    if len(then.data.sources) != len(now.data.sources):
        changed = {
            path: values for path, values in changed.items() if not path.startswith("data.sources")
        }
        changed["data.sources"] = (
            f"{len(then.data.sources)} sources",
            f"{len(now.data.sources)} sources",
        )
    changed |= _reordered(then, now)
    changed.pop("schedule.warmup_from", None)  # part of the line about the learning rate
    refused = []
    lines = []
    for path, (old, new) in changed.items():
        mark = OnResume.find_marker(now, path)
        if path == "optim.ema.decay" and not (old and new):
            mark = Fixed("the average must be kept from the start")
        if mark is None or isinstance(mark, Fixed):
            reason = mark.reason if mark is not None else "unknown"
            refused.append(f"{path}: {old} -> {new}: {reason}")
        else:
            consequence = f": {mark.consequence}" if mark.consequence else ""
            lines.append(f"{path}: {old} -> {new}{consequence}")
    done = state["step"] if state is not None else 0
    if now.steps < done and "steps" in changed:
        refused.append(f"steps: {then.steps} -> {now.steps}: {done} are done already")
    if now.data.update and state is not None and now.steps <= done:
        refused.append(f"data.update: all {now.steps} steps are done; give more --steps")
    shares = [path for path in changed if fnmatchcase(path, "data.sources.*.weight")]
    if state is None:
        settings_of_order = shares[:1]
        if now.data.update:
            settings_of_order.append("data.update")
        refused += [
            f"{path}: the order can change only after a checkpoint, and there is none"
            for path in settings_of_order
        ]
    if refused:
        head = (
            f"{root}: a run cannot be resumed with these settings; start a new one with another "
            "--output-dir"
        )
        raise ConfigError("\n".join([head, *(f"  {line}" for line in refused)]))
    if any(path in ("steps", "optim.lr") or path.startswith("schedule.") for path in changed):
        lines += _describe_learning_rate(then, now, done)
    if state is not None:
        if shares:
            lines.append(
                f"shares: those of the weights from position {state['position']} on; each source "
                "continues where it was, every frame once per epoch of its source; a lane may "
                "move to another process"
            )
        if "batch_size" in changed:
            lines.append(
                "batch_size: positions keep their samples, noise and times; "
                f"{now.steps - state['step']} steps of {now.batch_size} samples are left, from "
                f"position {state['position']} on; warm-up and decay still count steps"
            )
        if state["world"] != present["world"]:
            lines.append(
                f"processes: {state['world']} -> {present['world']}: "
                f"{OnResume.ROUNDING.consequence}"
            )
        for name, version in state["versions"].items():
            if version != present["versions"][name]:
                lines.append(
                    f"{name}: {version} -> {present['versions'][name]}: versions may round "
                    "differently"
                )
    return lines


def _reordered(then: TrainConfig, now: TrainConfig) -> dict[str, tuple[str, str]]:
    """Return path -> (old, new) sequence of the names of each mapping whose sequence alone differs.

    It orders the fields in a prompt, and patterns of which the first match counts.
    """
    mappings = {
        "data.prompt_metadata": (then.data.prompt_metadata, now.data.prompt_metadata),
        "optim.lr_scale": (then.optim.lr_scale, now.optim.lr_scale),
        "optim.weight_decay_of": (then.optim.weight_decay_of, now.optim.weight_decay_of),
    }
    return {
        path: (", ".join(old), ", ".join(new))
        for path, (old, new) in mappings.items()
        if list(old) != list(new) and set(old) == set(new)
    }


def stretch_schedule(then: TrainConfig, now: TrainConfig, done: int) -> TrainConfig:
    """Return `now` with the learning rate of a longer or shorter run.

    The decay ends where a new run of `now.steps` would end it, unless its end was set by hand.
    Where the learning rate would rise more than tenfold at once, as in a run that had ended, a
    second warm-up leads there.

    Args:
        then: settings of the latest checkpoint.
        now: settings to resume with.
        done: steps of the checkpoint.
    """
    end = then.schedule.decay_steps
    if (
        now.steps != then.steps
        and end is not None
        and now.schedule.decay_steps == end == _brought_decay(then)
    ):
        now = replace(now, schedule=replace(now.schedule, decay_steps=_brought_decay(now)))
    is_changed = (now.steps, now.schedule.decay_steps) != (then.steps, end)
    is_set = now.schedule.warmup_from != then.schedule.warmup_from
    warmup = now.schedule.warmup(now.steps)
    if is_changed and not is_set and done > warmup and _lr(now, done) > JUMP * _lr(then, done):
        now = replace(now, schedule=replace(now.schedule, warmup_from=done))
    return now


def _brought_decay(config: TrainConfig) -> int | None:
    """End of the decay that the policy brings for a run of this length; None: that of the run."""
    end: int | None = config.run_defaults().get("schedule", {}).get("decay_steps")
    return end


def _lr(config: TrainConfig, step: int) -> float:
    return config.optim.lr * lr_factor(step, config.schedule, config.steps)


def _describe_learning_rate(then: TrainConfig, now: TrainConfig, done: int) -> list[str]:
    """Describe the learning rate from here on, in figures."""
    schedule = now.schedule
    warmup = now.schedule.warmup(now.steps)
    lines = []
    old = _lr(then, done)
    curve = _lr(replace(now, schedule=replace(schedule, warmup_from=0)), done)
    if schedule.warmup_from == done and done:
        lines.append(
            f"learning rate: {curve:.3g} at step {done + 1} in place of {old:.3g}, more than "
            f"tenfold: {warmup} steps of warm-up lead there (schedule.warmup_from)"
        )
    elif old != (new := _lr(now, done)):
        lines.append(f"learning rate: {new:.3g} at step {done + 1} in place of {old:.3g}")
    last = _lr(now, now.steps - 1)
    end = max(schedule.decay_steps or now.steps, warmup + 1)
    if schedule.kind == "constant":
        rest = f"{now.optim.lr:g} to the end, step {now.steps}"
    elif now.steps <= warmup:
        rest = f"rises to {last:.3g} at the end, within the warm-up of {warmup} steps"
    elif now.steps > end:
        final = _lr(now, end)
        warning = ", which train nothing" if final == 0 else ""
        rest = (
            f"its decay ends at step {end}, as set, and stays at {final:g} for the last "
            f"{now.steps - max(end, done)} steps{warning}; --schedule.decay-steps {now.steps} "
            "stretches it"
        )
    elif now.steps < end:
        rest = f"the run ends at {last:.3g}, before the end of the decay at step {end}"
    else:
        rest = f"its decay ends with the run, at step {end}"
    if lines:
        return [f"{lines[0]}; {rest}"]
    return [f"learning rate: {rest}"]
