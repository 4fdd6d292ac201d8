"""Checks on resume: settings, processes and versions that changed, and the consequence of each change.

They are compared with those of the latest checkpoint (its state.json), so an edited config.yaml is noticed as well as a
flag. Each setting declares its consequence (`config/on_resume.py`). The lines are printed before training
starts.
"""

from fnmatch import fnmatchcase

from understudy.config.on_resume import ROUNDING, Fixed, marker
from understudy.config.schema import differences
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.optim.lr_schedule import lr_factor
from understudy.records import Record


def check_resume(root: object, then: TrainConfig, now: TrainConfig, state: Record | None, present: Record) -> list[str]:
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
        changed = {path: values for path, values in changed.items() if not path.startswith("data.sources")}
        changed["data.sources"] = f"{len(then.data.sources)} sources", f"{len(now.data.sources)} sources"
    changed |= _reordered(then, now)
    refused, lines = [], []
    for path, (old, new) in changed.items():
        mark = marker(now, path)
        if path == "optim.ema.decay" and not (old and new):
            mark = Fixed("the average must be kept from the start")
        if mark is None or isinstance(mark, Fixed):
            refused.append(f"{path}: {old} -> {new}: {mark.reason if mark is not None else 'unknown'}")
        else:
            lines.append(f"{path}: {old} -> {new}" + (f": {mark.consequence}" if mark.consequence else ""))
    done = state["step"] if state is not None else 0
    if now.steps < done and "steps" in changed:
        refused.append(f"steps: {then.steps} -> {now.steps}: {done} are done already")
    if now.data.update and state is not None and now.steps <= done:
        refused.append(f"data.update: all {now.steps} steps are done; give more --steps")
    shares = [path for path in changed if fnmatchcase(path, "data.sources.*.weight")]
    for path in [*shares[:1], *(["data.update"] if now.data.update else [])] if state is None else ():
        refused.append(f"{path}: the order can change only after a checkpoint, and there is none")
    if refused:
        head = f"{root}: a run cannot be resumed with these settings; start a new one with another --output-dir"
        raise ConfigError("\n".join([head, *(f"  {line}" for line in refused)]))
    if any(path in ("steps", "optim.lr") or path.startswith("schedule.") for path in changed):
        lines += _describe_learning_rate(then, now, done)
    if state is not None:
        if shares:
            lines.append(
                f"shares: those of the weights from position {state['position']} on; each source continues where it "
                "was, every frame once per epoch of its source; a lane may move to another process"
            )
        if "batch_size" in changed:
            lines.append(
                f"batch_size: positions keep their samples, noise and times; {now.steps - state['step']} steps of "
                f"{now.batch_size} samples are left, from position {state['position']} on; warm-up and decay still "
                "count steps"
            )
        if state["world"] != present["world"]:
            lines.append(f"processes: {state['world']} -> {present['world']}: {ROUNDING.consequence}")
        for name, version in state["versions"].items():
            if version != present["versions"][name]:
                lines.append(f"{name}: {version} -> {present['versions'][name]}: versions may round differently")
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


def _describe_learning_rate(then: TrainConfig, now: TrainConfig, done: int) -> list[str]:
    """Describe the learning rate from here on, in figures."""

    def at(config: TrainConfig, step: int) -> float:
        return config.optim.lr * lr_factor(step, config.schedule, config.steps)

    lines = []
    if (old := at(then, done)) != (new := at(now, done)):
        lines.append(f"learning rate: jumps from {old:.3g} to {new:.3g} at step {done + 1}, onto another curve")
    if now.schedule.kind == "constant":
        return [*lines, f"learning rate: {now.optim.lr:g} to the end, step {now.steps}"]
    warmup, last = now.schedule.warmup(now.steps), at(now, now.steps - 1)
    if now.steps <= warmup:
        return [*lines, f"learning rate: rises to {last:.3g} at the end, within the warm-up of {warmup} steps"]
    end = max(now.schedule.decay_steps or now.steps, warmup + 1)
    if now.steps > end:
        rest, final = now.steps - max(end, done), at(now, end)
        warning = ", which train nothing" if final == 0 else ""
        lines.append(
            f"learning rate: its decay ends at step {end} as before, and stays at {final:g} for the last {rest} steps"
            f"{warning}; --schedule.decay-steps {now.steps} stretches it"
        )
    elif now.steps < end:
        lines.append(f"learning rate: the run ends at {last:.3g}, before the end of the decay at step {end}")
    else:
        lines.append(f"learning rate: its decay ends with the run, at step {end}")
    return lines
