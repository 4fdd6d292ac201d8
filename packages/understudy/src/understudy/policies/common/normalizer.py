"""Conversion between the robot's units and the network's: norm heads, missing dimensions,
differences to the state.

Robots with one body and one control mode share a norm head: its normalization and its number of
dimensions. Vectors are padded to the width of the widest robot. All values behind a robot's own
dimensions are 0 here for any content of the batch: neither NaN nor noise in a dimension that a
robot does not have reaches the network.

Actions may be learnt as differences to the current state, dimension by dimension (a gripper's often
are not). The state is subtracted before the normalization and added again behind the network.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from understudy.policies.batch import check_shape, value_of
from understudy.policies.losses import padded_elements
from understudy_base import ACTION, HEAD, STATE, Batch, Record


class Affine(nn.Module):
    """Map (x - offset) / spread per dimension; a constant dimension (spread 0) becomes 0, and its
    constant in reverse.

    The buffers, float32 [H, dim], are not part of the state dict: a saved policy has them in
    `normalisation.json`.
    """

    offset: Tensor
    spread: Tensor

    def __init__(self, offset: Any, spread: Any) -> None:
        """Make the map from [H, dim] arrays, or [dim] of the only head; finite, spread >= 0, else
        ValueError.
        """
        super().__init__()
        if _has_boolean(offset) or _has_boolean(spread):
            raise ValueError("offset and spread must be arrays of numbers, and have a boolean")
        try:
            offset, spread = (
                torch.as_tensor(array, dtype=torch.float32).clone() for array in (offset, spread)
            )
        # no numbers, or rows of different lengths
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"offset and spread must be arrays of numbers, [dim] or [heads, dim]: {error}"
            ) from error
        if offset.ndim not in (1, 2) or offset.shape != spread.shape:
            shapes = f"offset {tuple(offset.shape)} and spread {tuple(spread.shape)}"
            raise ValueError(f"{shapes} must both be [dim] or [heads, dim]")
        if not (
            torch.isfinite(offset).all() and torch.isfinite(spread).all() and (spread >= 0).all()
        ):
            raise ValueError(
                f"offset {offset.tolist()} and spread {spread.tolist()} must be finite, spread >= 0"
            )
        self.register_buffer("offset", offset.view(-1, offset.shape[-1]), persistent=False)
        self.register_buffer("spread", spread.view(-1, spread.shape[-1]), persistent=False)

    def normalize(self, x: Tensor, head: Tensor | None = None) -> Tensor:
        """Normalize [..., dim] in the robot's units to float32 [..., dim].

        Args:
            x: the values.
            head: int64 [B], the row of each sample x[b]; None: the only one.

        Raises:
            ValueError: `head` is missing where there are several, or out of range.
        """
        offset, spread = self._rows(x, head)
        constant = spread == 0
        scaled = (x.float() - offset) / torch.where(constant, 1.0, spread)
        return torch.where(constant, 0.0, scaled)

    def unnormalize(self, x: Tensor, head: Tensor | None = None) -> Tensor:
        """Invert `normalize`: float32 [..., dim] -> float32 [..., dim] in the robot's units."""
        offset, spread = self._rows(x, head)
        return x.float() * spread + offset

    def arrays(self) -> dict[str, list[list[float]]]:
        """Return offset and spread as [H][dim] lists; float32 -> float64 -> text -> float32 is
        exact.
        """
        return {"offset": self.offset.tolist(), "spread": self.spread.tolist()}

    @staticmethod
    def from_arrays(arrays: Record, key: str, dim: int, heads: int = 1) -> "Affine":
        """Make the maps of one key from {"offset": ..., "spread": ...}.

        Raises:
            ValueError: they are not `dim` wide, or not as many as `heads`.
        """
        missing = {"offset", "spread"} - set(arrays)
        if missing:
            raise ValueError(f"normalization of {key!r} lacks {sorted(missing)}")
        affine = Affine(arrays["offset"], arrays["spread"])
        rows, width = affine.offset.shape
        if width != dim:
            raise ValueError(f"normalization of {key!r} is {width} wide, the policy expects {dim}")
        if rows != heads:
            raise ValueError(f"normalization of {key!r} has {rows} norm heads, expected {heads}")
        return affine

    def _rows(self, x: Tensor, head: Tensor | None) -> tuple[Tensor, Tensor]:
        """Offset and spread, broadcastable to x: [dim], or [B, 1, ..., dim]."""
        offset = of_head(self.offset, head)
        spread = of_head(self.spread, head)
        if head is None:
            return offset[0], spread[0]
        if head.shape[0] != x.shape[0]:
            raise ValueError(f"head has shape {tuple(head.shape)}, expected ({x.shape[0]},)")
        shape = (x.shape[0], *[1] * (x.ndim - 2), offset.shape[1])
        return offset.view(shape), spread.view(shape)


def _has_boolean(value: Any) -> bool:
    """Whether a list, of lists, has a boolean, which torch takes for a number."""
    if isinstance(value, list | tuple):
        return any(map(_has_boolean, value))
    return isinstance(value, bool)


def of_head(table: Tensor, head: Tensor | None) -> Tensor:
    """Return each sample's row of a table [H, dim]: [B, dim] by head, int64 [B]; the only row [1,
    dim] for None.

    Raises:
        ValueError: `head` is missing where there are several, or out of range. (On a GPU that ends
            the process.)
    """
    if head is None:
        if len(table) != 1:
            raise ValueError(
                f"there are {len(table)} norm heads: give the head of each sample, head [B]"
            )
        return table
    if head.ndim != 1 or head.dtype != torch.int64:
        raise ValueError(f"head is {head.dtype} of shape {tuple(head.shape)}, expected int64 (B,)")
    try:
        return table.index_select(0, head)  # not table[head], for which -1 is the last one
    except IndexError as error:
        raise ValueError(f"head {head.tolist()}: there are {len(table)} norm heads") from error


ONLY = ("",)
"""Names of the heads of a normalization that names none."""


class Normalizer(nn.Module):
    """The normalization of a policy;
    `Normalizer(normalization, {"action": A, "observation.state": S})`.
    """

    delta: Tensor | None
    """bool [H, A]: the dimensions that are differences; None where none is."""

    def __init__(self, normalization: Record, widths: Mapping[str, int]) -> None:
        """Read the normalization of H heads.

            "heads": H names; without it there is one, and the arrays may lack their first dimension
            "action", "observation.state": {"offset": [H][dim], "spread": [H][dim]}, see `Affine`
            "delta": bool [H][A], the dimensions of the action that are learnt as difference to
                that of the same number of the state; without it none
            "dims": {"action": [H], "observation.state": [H]}, how many dimensions are a head's
                own; without it all

        `widths` has the keys that the policy uses.

        Raises:
            ValueError: an entry is missing, of another type, of the wrong width, or cannot be
                inverted.
        """
        super().__init__()
        _check_types(normalization, widths)
        self.heads: tuple[str, ...] = tuple(normalization.get("heads", ONLY))
        if not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(
                f"normalization names the heads {list(self.heads)}: one name for each, at least one"
            )
        count = len(self.heads)
        # Module names may not contain dots.
        self.action = Affine.from_arrays(normalization[ACTION], ACTION, widths[ACTION], count)
        self.state = None
        if STATE in widths:
            self.state = Affine.from_arrays(normalization[STATE], STATE, widths[STATE], count)
        self.widths = dict(widths)
        self.dims: dict[str, list[int]] = {}
        for key, width in widths.items():
            dims = normalization.get("dims", {}).get(key, [width] * count)
            if (
                not isinstance(dims, list | tuple)
                or len(dims) != count
                or not all(dim in range(1, width + 1) and not isinstance(dim, bool) for dim in dims)
            ):
                raise ValueError(
                    f"normalization says dims {dims} of {key!r}: {count} numbers from 1 to {width}"
                )
            dims = self.dims[key] = [int(dim) for dim in dims]
            past = torch.arange(width) >= torch.tensor(dims)[:, None] if min(dims) < width else None
            # bool [H, dim], None: all are real
            self.register_buffer(f"{_short(key)}_past", past, persistent=False)
        stored = normalization.get("delta", [[False] * widths[ACTION]] * count)
        try:
            delta = torch.as_tensor(stored, dtype=torch.bool)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"normalization's delta is {stored!r:.80}: give true or false by head, dim"
            ) from error
        check_shape("normalization's delta", delta, (count, widths[ACTION]))
        for head, dim in delta.nonzero().tolist():
            self._check_inverse(head, dim)
        delta_if_any = delta if delta.any() else None
        self.register_buffer("delta", delta_if_any, persistent=False)

    def head(self, batch: Batch) -> Tensor | None:
        """Return the head of each sample, int64 [B]; None where there is one head and the batch
        names none.
        """
        if HEAD not in batch and len(self.heads) > 1:
            names = ", ".join(self.heads)
            raise ValueError(
                f"the policy has the norm heads {names}: the batch must number each sample's, "
                "'head' [B]"
            )
        return batch.get(HEAD)

    def dim_is_pad(self, key: str, batch: Batch) -> Tensor | None:
        """Return the padded dimensions, bool [B, dim], by head and by `<key>_dim_is_pad`; None
        where there are none.
        """
        past: Tensor | None = getattr(self, f"{_short(key)}_past")
        mask = None
        if past is not None:
            mask = of_head(past, self.head(batch))  # [B, dim]; [1, dim] of the only head
        if (of_batch := batch.get(f"{key}_dim_is_pad")) is not None:
            check_shape(f"{key}_dim_is_pad", of_batch, (None, self.widths[key]))
            mask = of_batch if mask is None else mask | of_batch
        return mask

    def padded_elements(self, key: str, batch: Batch) -> Tensor:
        """Mark the elements of a key over time that have no target: those of slots outside of the
        episode (`<key>_is_pad`), and of dimensions that the robot lacks.

        Returns:
            bool [B, T, dim], or [B, T, 1] where all robots have all dimensions.

        Raises:
            ValueError: `<key>_is_pad` is missing, or a wrong shape.
        """
        return padded_elements(value_of(batch, f"{key}_is_pad"), self.dim_is_pad(key, batch))

    def blank(self, key: str, batch: Batch, x: Tensor) -> Tensor:
        """Return x [B, ..., dim] with 0 in the dimensions of a key that the robot lacks."""
        return blanked(x, self.dim_is_pad(key, batch))

    def actions(self, batch: Batch) -> Tensor:
        """Normalize `action` [B, T, A] of a batch, float32; differences to the state where its head
        learns those.
        """
        actions = value_of(batch, ACTION).float()
        head = self.head(batch)
        if (now := self._learnt_from(batch)) is not None:
            actions = actions - now[:, None]
        return blanked(self.action.normalize(actions, head), self.dim_is_pad(ACTION, batch))

    def robot_actions(self, x: Tensor, batch: Batch) -> Tensor:
        """Convert normalized actions, float32 [B, T, A], to the robot's units; 0 behind its own
        dimensions.
        """
        actions = self.action.unnormalize(x, self.head(batch))
        if (now := self._learnt_from(batch)) is not None:
            actions = actions + now[:, None]
        return blanked(actions, self.dim_is_pad(ACTION, batch))

    def states(self, batch: Batch, values: Tensor) -> Tensor:
        """Normalize states [B, ..., S] of the samples of a batch, float32."""
        assert self.state is not None
        return blanked(
            self.state.normalize(values, self.head(batch)), self.dim_is_pad(STATE, batch)
        )

    def present_states(self, batch: Batch) -> Tensor:
        """Normalize the present states of a batch, float32 [B, S]; those that follow may be behind
        them.
        """
        return self.states(batch, state_now(batch))

    def robot_states(self, x: Tensor, batch: Batch) -> Tensor:
        """Convert normalized states, float32 [B, ..., S], to the robot's units; 0 behind its own
        dimensions.
        """
        assert self.state is not None
        return blanked(self.state.unnormalize(x, self.head(batch)), self.dim_is_pad(STATE, batch))

    def arrays(self) -> dict[str, Any]:
        """Return the normalization as JSON values; `Normalizer` of it is equal to the bit."""
        arrays: dict[str, Any] = {"heads": list(self.heads), ACTION: self.action.arrays()}
        if self.state is not None:
            arrays[STATE] = self.state.arrays()
        delta = self.delta
        if delta is None:
            delta = torch.zeros(len(self.heads), self.widths[ACTION], dtype=torch.bool)
        return arrays | {"delta": delta.tolist(), "dims": dict(self.dims)}

    def _learnt_from(self, batch: Batch) -> Tensor | None:
        """Values to subtract from the actions, float32 [B, A]: the current state where they are
        differences, else 0.
        """
        if self.delta is None:
            return None
        mask = of_head(self.delta, self.head(batch))  # [B, A]
        now = state_now(batch)[:, : self.widths[ACTION]].float()
        now = torch.nn.functional.pad(now, (0, self.widths[ACTION] - now.shape[1]))
        return torch.where(mask, now, 0.0)

    def _check_inverse(self, head: int, dim: int) -> None:
        width = self.dims[STATE][head] if STATE in self.dims else 0
        if dim >= min(width, self.dims[ACTION][head]):
            of = f"of head {self.heads[head]!r} " if len(self.heads) > 1 else ""
            have = f"{width} wide" if width else "no input of this policy"
            raise ValueError(
                f"action[{dim}] {of}is learnt as difference to the state, and cannot be inverted: "
                f"its action is {self.dims[ACTION][head]} wide, its state {have}; learn it as it is"
            )


def state_now(batch: Batch) -> Tensor:
    """Return the current state [B, S] of `observation.state` [B, S] or [B, 1 + T, S] with its
    future.
    """
    state: Tensor = value_of(batch, STATE)
    return state[:, 0] if state.ndim == 3 else state


def blanked(x: Tensor, dim_is_pad: Tensor | None) -> Tensor:
    """Return x [B, ..., dim] with 0 in the padded dimensions of `dim_is_pad` [B, dim]."""
    if dim_is_pad is None:
        return x
    rows, dim = dim_is_pad.shape
    return torch.where(dim_is_pad.view(rows, *[1] * (x.ndim - 2), dim), 0.0, x)


def _check_types(normalization: Record, widths: Mapping[str, int]) -> None:
    """Raise ValueError where a key is missing, or an entry of a JSON file has another type."""
    for key in widths:
        if key not in normalization:
            raise ValueError(
                f"normalization has {sorted(normalization)}, the policy also needs {key!r}"
            )
    for key in (*widths, "dims"):
        if not isinstance(entry := normalization.get(key, {}), Mapping):
            raise ValueError(f"normalization's {key} is {entry!r:.80}: it must be an object")
    heads = normalization.get("heads", ONLY)
    if not isinstance(heads, list | tuple) or not all(isinstance(name, str) for name in heads):
        raise ValueError(f"normalization's heads are {heads!r:.80}: they must be a list of names")


def _short(key: str) -> str:
    return key.rpartition(".")[2]
