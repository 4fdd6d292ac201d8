"""The page "why it does not grasp", of a trace (`contracts/trace.py`): errors, transitions,
likelihood, ages.
"""

from collections.abc import Sequence

import numpy as np

from understudy_kit import Block, Curve, render_page
from understudy_robot.contracts.trace import Diagnosis
from understudy_robot.report.failures import Reason, describe

_UNLIKELY = -2.0  # nats per number
_OUTSIDE = 0.05  # share of the states


def findings(diagnosis: Diagnosis, reasons: Sequence[Reason] = ()) -> list[str]:
    """List the contradictions of a trace, facts about failed episodes, then its conspicuous
    figures, a line each.
    """
    lines = [f"{place}{mismatch}" for place, mismatch in diagnosis.mismatches]
    lines += [reason.text for reason in reasons]
    for name, turns in diagnosis.transitions.items():
        if turns.matched < turns.recorded:
            lines.append(
                f"{name}: {turns.recorded - turns.matched} of {turns.recorded} recorded "
                "transitions are missed"
            )
        if not turns.predicted:
            lines.append(f"{name}: the policy never closes or opens it")
    if not diagnosis.transitions:
        lines.append("no gripper is known: state `gripper` in the contract")
    lines += [f"{name}: {share:.0%} of the states are outside the range of training"
              for name, share in diagnosis.outside.items() if share > _OUTSIDE]  # fmt: skip
    if len(diagnosis.likelihood) and np.median(diagnosis.likelihood) < _UNLIKELY:
        lines.append(
            f"states are unlike training: {np.median(diagnosis.likelihood):.1f} nats per number "
            "(0 is usual; each nat below it is 2.7 times rarer)"
        )
    for camera, misfit in diagnosis.misfits.items():
        seen = misfit[~np.isnan(misfit)]
        if len(seen) and np.median(seen) > 1:
            lines.append(
                f"{camera}: images are unlike training: {np.median(seen):.1f} times the usual "
                "misfit"
            )
    fps = diagnosis.facts.fps
    if fps > 0 and np.median(diagnosis.ages_s) > 1 / fps:
        lines.append(f"observations are {np.median(diagnosis.ages_s) * fps:.1f} control steps old")
    return lines


def why_page(diagnosis: Diagnosis, name: str, reasons: Sequence[Reason] = ()) -> str:
    """Render the page of a trace.

    Args:
        diagnosis: its figures.
        name: its name, for headings.
        reasons: facts about the failed episodes of a rollout.
    """
    lines = findings(diagnosis, reasons)
    action = diagnosis.facts.action
    rows = []
    for i, joint in enumerate(action.names):
        rows.append([joint, *(f"{error[i]:.3g}" for error in diagnosis.errors.values())])
    errors = (
        Block.table_card("Mean absolute error", ["action", *diagnosis.errors], rows)
        if diagnosis.errors
        else None
    )
    starts = np.cumsum(diagnosis.lengths)[:-1].tolist()
    columns = ["predicted", "recorded", "matched"] if diagnosis.errors else ["predicted"]
    turns = []
    for gripper, transitions in diagnosis.transitions.items():
        mean = f"{transitions.predicted / len(diagnosis.lengths):.1f}"
        turns.append([gripper, *(vars(transitions)[name] for name in columns), mean])
    shares = [[joint, f"{share:.0%}"] for joint, share in diagnosis.outside.items()]
    numbers = np.arange(len(diagnosis.steps))
    likelihood = Curve(
        "state", numbers[: len(diagnosis.likelihood)], diagnosis.likelihood, starts=starts
    )
    looks = [
        Curve(camera, numbers, misfit, color, starts=starts)
        for color, (camera, misfit) in enumerate(diagnosis.misfits.items())
    ]
    heads = ["finding", "number", "successful", "first episode", "step"]
    failed = Block.table_card("", heads, describe(reasons)) if reasons else None
    note = "By phase of the gripper; the newest chunk of each step."
    unlike = (
        "Log-likelihood of a state among those of training, in nats per number: 0 is usual, -1 is "
        "2.7 times rarer. A line ends with its episode."
    )
    misfit_note = (
        "Distance of an image from those of training; 1 is exceeded by one image of training in "
        "twenty. A line ends with its episode."
    )
    age_note = "Seconds between an observation and its prediction."
    likelihood_chart = Block.chart(
        "Likelihood of the states", "prediction", "nats per number, 0 is usual", [likelihood]
    )
    outside = Block.table_card("Outside the range of training", ["dimension", "share"], shares)
    misfit_chart = Block.chart(
        "Misfit of the images", "prediction", "misfit, 1 is the largest usual one", looks
    )
    ages = Block.histogram("Age", diagnosis.ages_s, "s", "predictions")
    sections = [
        Block.section("Failed episodes", failed),
        Block.section("Error against the recording", errors, note=note),
        Block.section(
            "Gripper transitions",
            Block.table_card("", ["gripper", *columns, "predicted per episode"], turns),
            note="Openings and closings; one grasp is one or two of them.",
        ),
        Block.section("States", Block.card("", likelihood_chart), outside, note=unlike),
        Block.section("Images", Block.card("", misfit_chart), note=misfit_note),
        Block.section("Age of observations", ages, note=age_note),
    ]
    figures = [
        (f"{len(diagnosis.steps):,}", "predictions"),
        (f"{len(diagnosis.lengths):,}", "episodes"),
        (f"{len(lines)}", "findings"),
    ]
    first, *others = lines or ["Nothing contradicts the training: look at the failed episodes"]
    top = [Block.paragraph(first, "verdict"), Block.tiles(figures)]
    if listed := Block.listing(others):
        top.insert(1, listed)
    return render_page(
        f"{name} · why it does not grasp", "Why it does not grasp", sections, top=top
    )
