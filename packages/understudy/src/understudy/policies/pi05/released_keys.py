"""Names of released pi0.5 and pi0 weights: the map between them and the network's parameters, both
ways. No torch.

The released names are from openpi's converter and of LeRobot's `pi05_base` and `pi0_base`.
`canonical` brings the dialects of other tools to them:

    model.*                                     LeRobot's trainer puts `model.` before each name
    …paligemma.model.vision_tower.encoder.*     transformers 5.6 and later drop `.vision_model`
    …paligemma.language_model.model.*           files of transformers before 4.52
    …paligemma.vision_tower.*

The token embedding is in a released file under the name of the text head, `lm_head`, to which it is
tied. A file of LeRobot's trainer on transformers 5 has both, as two tensors: there the head is
stale and the embedding counts. `match` is strict: every parameter has exactly one key of its shape,
and every other key of the file has a reason.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

Shapes = Mapping[str, Sequence[int]]

PALIGEMMA = "paligemma_with_expert.paligemma."
EXPERT = "paligemma_with_expert.gemma_expert."
VISION = f"{PALIGEMMA}model.vision_tower.vision_model."
LANGUAGE = f"{PALIGEMMA}model.language_model."
HEAD = f"{PALIGEMMA}lm_head.weight"
EMBEDDING = f"{LANGUAGE}embed_tokens.weight"
EXPERT_HEAD = f"{EXPERT}lm_head.weight"
"""The expert's text head: in every released file, read by no network."""

PREFIXES = (
    ("vision.patch.", f"{VISION}embeddings.patch_embedding."),
    ("vision.position.", f"{VISION}embeddings.position_embedding."),
    ("vision.layers.", f"{VISION}encoder.layers."),
    ("vision.norm.", f"{VISION}post_layernorm."),
    ("projector.", f"{PALIGEMMA}model.multi_modal_projector.linear."),
    ("vlm_norm.", f"{LANGUAGE}norm."),
    ("expert_norm.", f"{EXPERT}model.norm."),
)
"""First parts of names: the network's and the released ones."""
TOWERS = (("vlm", f"{LANGUAGE}layers."), ("expert", f"{EXPERT}model.layers."))
"""Tower of a layer of the network -> first part of the released names of its layers."""
EXPERT_TENSORS = (f"{EXPERT}*", "action_*_proj.*", "time_mlp_*")
"""Patterns of canonical names of pi0.5's action expert, which a policy without one does not read.
"""
NEW = ("proprio_history_proj.", "future.", "value_head.")
"""First parts of names that a released file may lack: fresh weights take their place."""
SAME = (
    "action_in_proj.",
    "action_out_proj.",
    "time_mlp_in.",
    "time_mlp_out.",
    "state_proj.",
    "action_time_mlp_",
    *NEW,
)
"""First parts of names that are equal on both sides."""

IGNORED = (
    (EXPERT_HEAD, "the expert's text head is unused"),
    ("*.rotary_emb.inv_freq", "rotary positions are computed"),
    ("*.embeddings.position_ids", "positions of patches are computed"),
)
"""Patterns of canonical names without a parameter, and why."""
REFUSED = (
    (
        "discrete_action_embedding.*",
        "an embedding of action tokens next to the vocabulary, as OpenTau trains it",
    ),
    ("da_head.*", "a head of action tokens next to the vocabulary, as OpenTau trains it"),
    (
        "proprio_history_proj.*",
        "a projection of past states: set policy.state_history and policy.history",
    ),
    ("value_head.*", "the head of a value function: set policy.type to value_pi05"),
    (
        "future.*",
        "a layer of a world-action model's future: set policy.type to world_action, and mode to "
        "joint",
    ),
    (
        "*normalize_*",
        "normalization inside the weights; convert the folder to processor files with LeRobot's "
        "migration",
    ),
)
"""Patterns of canonical names that change the meaning of the other weights, and why."""


class WeightsError(ValueError):
    """The tensors of a file are not those of the network.

    Attributes:
        where: the file or folder.
        missing: parameters without a key, by the first released name that would serve.
        extra: keys without a parameter -> why, "" where they are unknown.
        shapes: keys of another shape -> (shape in the file, shape of the parameter).
    """

    def __init__(
        self,
        where: object,
        missing: Sequence[str],
        extra: Mapping[str, str],
        shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
        fix: str = "",
    ) -> None:
        self.where = where
        self.missing = tuple(missing)
        self.extra = dict(extra)
        self.shapes = dict(shapes)
        self.fix = fix
        lines = [f"  missing: {key}" for key in self.missing]
        for key, why in self.extra.items():
            reason = f" ({why})" if why else ""
            lines.append(f"  unexpected: {key}{reason}")
        lines += [
            f"  shape {list(stored)}, expected {list(expected)}: {key}"
            for key, (stored, expected) in self.shapes.items()
        ]
        shown = lines[:20]
        if len(lines) > 20:
            shown.append(f"  and {len(lines) - 20} more")
        head = f"{where}: {len(lines)} tensors do not fit the network"
        if fix:
            head += f": {fix}"
        super().__init__("\n".join([head, *shown]))


class Match(NamedTuple):
    """Result of `match`."""

    keys: dict[str, str]
    """Parameter -> key of the file."""
    ignored: dict[str, str]
    """Keys of the file that are not read -> why."""


def released_key(name: str) -> str:
    """Return the released name of a parameter.

    Raises:
        KeyError: the network has no such parameter.
    """
    if name == "embedding.weight":
        return HEAD
    for ours, released in PREFIXES:
        if name.startswith(ours):
            return released + name.removeprefix(ours)
    first, *rest = name.split(".", 3)
    for tower, released in TOWERS:
        if first == "layers" and len(rest) == 3 and rest[0].isdigit() and rest[1] == tower:
            return f"{released}{rest[0]}.{rest[2]}"
    if name.startswith(SAME):
        return name
    raise KeyError(name)


def own_name(key: str) -> str | None:
    """Return the parameter that a key of any dialect names, or that is called so; None: there is no
    such parameter.
    """
    key = canonical(key)
    if key in (HEAD, EMBEDDING):
        return "embedding.weight"
    for ours, released in PREFIXES:
        if key.startswith(released):
            return ours + key.removeprefix(released)
    for tower, released in TOWERS:
        number, _, leaf = key.removeprefix(released).partition(".")
        if key.startswith(released) and number.isdigit() and leaf:
            return f"layers.{number}.{tower}.{leaf}"
    if key.startswith(SAME):
        return key
    try:
        released_key(key)
    except KeyError:
        return None
    return key


def canonical(key: str) -> str:
    """Return the released name of a key of any dialect; other keys without a leading `model.`."""
    key = key.removeprefix("model.")
    if not key.startswith(PALIGEMMA):
        return key
    rest = key.removeprefix(PALIGEMMA)
    for old, new in (
        ("language_model.model.", "model.language_model."),
        ("language_model.lm_head.", "lm_head."),
        ("vision_tower.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ):
        if rest.startswith(old):
            rest = new + rest.removeprefix(old)
    tower = "model.vision_tower."
    if rest.startswith(tower) and not rest.startswith(f"{tower}vision_model."):
        rest = f"{tower}vision_model.{rest.removeprefix(tower)}"
    return PALIGEMMA + rest


def is_adaptive(keys: Iterable[str]) -> bool:
    """Return whether the keys are those of pi0.5, whose time modulates the expert's norms; False:
    pi0.

    Raises:
        ValueError: neither has such keys.
    """
    names = {canonical(key) for key in keys}
    if "time_mlp_in.weight" in names:
        return True
    if "action_time_mlp_in.weight" in names:
        return False
    raise ValueError(
        "there is neither time_mlp_in.weight nor action_time_mlp_in.weight: no weights of pi0.5 or "
        "pi0"
    )


def match(
    stored: Shapes,
    needed: Shapes,
    where: object = "weights",
    optional: tuple[str, ...] = (),
    unread: Collection[str] = (),
) -> Match:
    """Find the key of each parameter.

    Args:
        stored: shapes of the tensors of a file, by key.
        needed: shapes of the parameters, by name.
        where: the file, for errors.
        optional: first parts of the names of parameters that are fresh where the file lacks them.
        unread: patterns of canonical names that may have no parameter; the reason in `ignored` is
            the pattern.

    Raises:
        WeightsError: a missing key, one without a parameter, one of another shape, two keys of one
            parameter.
    """
    keys: dict[str, str] = {}
    ignored: dict[str, str] = {}
    extra: dict[str, str] = {}
    has_embedding = any(canonical(key) == EMBEDDING for key in stored)
    for key in stored:
        plain = canonical(key)
        name = own_name(key)
        if plain == HEAD and has_embedding:
            ignored[key] = "the embedding is there itself; a head next to it may be stale"
        elif name is not None and name in needed:
            if name in keys:
                extra[key] = f"a second tensor of {name}, next to {keys[name]}"
            keys.setdefault(name, key)
        elif why := _reason(plain, (*IGNORED, *((pattern, pattern) for pattern in unread))):
            ignored[key] = why
        else:
            extra[key] = _reason(plain, REFUSED)
    shapes = {
        key: (tuple(stored[key]), tuple(needed[name]))
        for name, key in keys.items()
        if tuple(stored[key]) != tuple(needed[name])
    }
    missing = [
        released_key(name) for name in needed if name not in keys and not name.startswith(optional)
    ]
    if missing or extra or shapes:
        raise WeightsError(where, missing, extra, shapes, _family(stored, needed))
    return Match(keys, ignored)


def _reason(key: str, table: Sequence[tuple[str, str]]) -> str:
    return next((why for pattern, why in table if fnmatchcase(key, pattern)), "")


def _family(stored: Shapes, needed: Shapes) -> str:
    """Remedy where the file is of the other family."""
    try:
        theirs = is_adaptive(stored)
    except ValueError:
        return "it holds no weights of pi0.5 or pi0"
    if theirs == ("state_proj.weight" not in needed):
        return ""
    if theirs:
        return "it holds weights of pi0.5: set policy.type to pi05"
    return "it holds weights of pi0: set policy.type to pi0"
