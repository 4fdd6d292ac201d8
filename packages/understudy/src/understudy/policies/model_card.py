"""README.md of a policy folder: a model card, as hubs show it. An edited card is never replaced
(`hub/cards.py`).
"""

import json

from understudy_base import Record, __version__
from understudy_client import RobotFacts, VectorFacts, printable
from understudy_data import ModelCard

_MOST_NAMES = 40
_MOST_TASKS = 10


def make_card(config: Record, weights: int, contract: Record | None) -> str:
    """Describe a policy: kind, origin, figures, inputs and outputs per robot, and how to load it.

    Args:
        config: content of config.json.
        weights: number of weights.
        contract: content of contract.json; None where the run recorded none.

    Returns:
        Markdown in UTF-8, with the metadata that hubs read in front.
    """
    kind = str(config["type"])
    provenance = dict((contract or {}).get("provenance", {}))
    parts = [
        "\n".join(
            [
                "---",
                "library_name: understudy",
                "pipeline_tag: robotics",
                f"tags: [robotics, {kind}]",
                "---",
            ]
        ),
        f"# Robot policy of type `{kind}`",
        f"{weights:,} weights, written by understudy {__version__}. {_origin(provenance)}".rstrip(),
        "## Load",
        "```python\nimport understudy as us\n\n"
        f'policy = us.load_policy("PATH")  # this folder, or hf://OWNER/NAME\n'
        f"{_call(contract)}\n```",
    ]
    if data := provenance.get("datasets"):
        parts += ["## Data", "\n".join(f"* {_code(name)}" for name in data)]
    if most := config.get("max_delay"):
        parts += [
            "## Delay",
            f"Trained to continue chunks that arrive up to {most} actions late (`max_delay`).",
        ]
    if figures := provenance.get("figures"):
        rows = [f"| {name} | {value:.6g} |" for name, value in figures.items()]
        parts += ["## Figures", "\n".join(["| on validation episodes | |", "|---|---|", *rows])]
    robots = (contract or {}).get("robots", {})
    for head, stored in robots.items():
        of_head = f" of {_code(head)}" if len(robots) > 1 else ""
        parts += [f"## Inputs and outputs{of_head}", _robot(stored)]
    if not robots:
        facts = {
            name: config[name]
            for name in ("cameras", "state_dim", "action_dim", "chunk")
            if name in config
        }
        parts += ["## Inputs and outputs", f"```json\n{json.dumps(facts, indent=2)}\n```"]
    return ModelCard("\n\n".join(parts) + "\n\n").signed


def _origin(provenance: Record) -> str:
    if "run" not in provenance:
        return ""
    step = f" at step {provenance['step']}" if "step" in provenance else ""
    return f"From run {_code(provenance['run'])}{step}."


def _call(contract: Record | None) -> str:
    first = next(iter((contract or {}).get("robots", {}).values()), None)
    chunk = f"[{first['chunk']}, {len(first['action']['names'])}]" if first else "[T, A]"
    return f"actions = policy.act(observation)  # float32 {chunk}, in the robot's units"


def _robot(stored: Record) -> str:
    facts = RobotFacts.from_json(stored)
    robot = ", ".join(_code(name) for name in (facts.robot_type, facts.control_mode) if name)
    prefix = f"{robot}: " if robot else ""
    lines = [
        f"{prefix}{facts.fps:g} control steps per second, {facts.chunk} actions at once.",
        "",
        "| key | shape | dimensions |",
        "|---|---|---|",
    ]
    for camera in facts.cameras.values():
        size = f"{camera.size[0]} x {camera.size[1]}" if any(camera.size) else "any size"
        lines.append(f"| {_code(camera.key)} | uint8 [H, W, 3], {size}, RGB | |")
    lines += [_vector(vector) for vector in (facts.state, facts.action) if vector is not None]
    tasks = [f"* {_code(task)}" for task in facts.tasks[:_MOST_TASKS] if task]
    left = len(facts.tasks) + facts.tasks_left_out - _MOST_TASKS
    if left > 0:
        tasks.append(f"* and {left} others, in contract.json")
    if tasks:
        lines += ["", "Instructions of training:", "", *tasks]
    return "\n".join(lines)


def _vector(facts: VectorFacts) -> str:
    more = f" and {facts.width - _MOST_NAMES} others" if facts.width > _MOST_NAMES else ""
    names = ", ".join(map(_code, facts.names[:_MOST_NAMES]))
    return f"| {_code(facts.key)} | float32 [{facts.width}] | {names}{more} |"


def _code(text: str) -> str:
    """Return a text of a dataset as code of Markdown, in which no HTML, link or line break has an
    effect.
    """
    plain = printable(text).replace("`", "'").replace("|", "\N{BROKEN BAR}")
    return f"`{plain or ' '}`"
