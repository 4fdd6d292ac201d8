"""Training preset of a policy of LeRobot, read from its config class, as settings of a run.

The values are from the installed LeRobot: `get_optimizer_preset`, `get_scheduler_preset` and the normalization of
its config class, and the steps and the batch size of its training pipeline. Neither torch nor lerobot is imported until
`read_preset` is called.
"""

from typing import Any

from understudy.optional_packages import optional_imports
from understudy.policies.registry import imported

RUN = "lerobot.configs.train:TrainPipelineConfig"
BACKBONE = "model.backbone.*"
NORMALIZATIONS = {"MEAN_STD": "mean_std", "MIN_MAX": "min_max", "QUANTILES": "quantile"}


def read_preset(kind: str, steps: int, with_chunk: bool) -> dict[str, Any]:
    """Return the settings of a run, those of a group nested, with which LeRobot trains a policy.

    Args:
        kind: its config class, "module:name".
        steps: length of the run; a schedule that is longer is compressed, as LeRobot does.
        with_chunk: whether to add the length of its chunks.

    Raises:
        MissingExtraError: lerobot is not installed.
        ValueError: the preset needs an optimizer, a schedule or a normalization that a run lacks.
    """
    with optional_imports():
        theirs, run = imported(kind)(device="cpu"), imported(RUN)
    data: dict[str, Any] = {"normalize": NORMALIZATIONS[theirs.normalization_mapping["ACTION"].value]}
    if with_chunk:
        data["chunk_size"] = theirs.chunk_size
    if left_out := getattr(theirs, "drop_n_last_frames", 0):
        data["drop_n_last_frames"] = left_out
    optimizer = theirs.get_optimizer_preset()
    if optimizer.type not in ("adam", "adamw"):
        raise ValueError(f"{kind}: a run has AdamW, and its preset {optimizer.type}")
    beta1, beta2 = optimizer.betas
    optim = {
        "lr": float(optimizer.lr),
        "beta1": beta1,
        "beta2": beta2,
        "eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "weight_decay_on": "all",
        "grad_clip_norm": float(optimizer.grad_clip_norm),
    }
    backbone = getattr(theirs, "optimizer_lr_backbone", optimizer.lr)
    if backbone != optimizer.lr:
        optim["lr_scale"] = {BACKBONE: backbone / optimizer.lr}
    return {
        "steps": run.steps,
        "batch_size": run.batch_size,
        "data": data,
        "augment": {"shift": 0},
        "optim": optim,
        "schedule": schedule_settings(theirs.get_scheduler_preset(), steps),
    }


def schedule_settings(preset: Any, steps: int) -> dict[str, Any]:
    """Return the settings of a schedule of LeRobot; None is a constant learning rate.

    Raises:
        ValueError: a run has no such schedule.
    """
    if preset is None:
        return {"kind": "constant", "warmup_steps": 0}
    if preset.type == "diffuser" and preset.name in ("cosine", "linear", "constant_with_warmup"):
        kind = preset.name.partition("_")[0]
        return {"kind": kind, "warmup_steps": preset.num_warmup_steps or 0, "final_lr_ratio": 0.0}
    if preset.type == "cosine_decay_with_warmup":
        share = min(1.0, steps / preset.num_decay_steps)
        return {
            "kind": "cosine",
            "warmup_steps": int(preset.num_warmup_steps * share),
            "decay_steps": min(steps, preset.num_decay_steps),
            "final_lr_ratio": preset.decay_lr / preset.peak_lr,
        }
    raise ValueError(f"a run has no schedule {preset.type} of LeRobot; set --schedule")
