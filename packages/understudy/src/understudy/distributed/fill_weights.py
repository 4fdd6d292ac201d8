"""Filling of parameters row by row: whole ones, and this rank's shard of those that FSDP2 has
sharded.

A network that is too large to build in each process is built on the meta device, sharded, given
memory (`materialise`) and filled. Each rank reads only its own rows, `PART` bytes at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

PART = 1 << 25
"""Bytes of a parameter that are read at once."""

ReadRows = Callable[[str, int, int], Tensor]
"""(name, first row, row after the last) -> these rows of a parameter, in any float dtype."""

META = torch.device("meta")


def materialise(modules: Iterable[nn.Module], device: torch.device) -> None:
    """Give memory on `device` to the meta tensors of modules, unfilled, and move their other
    tensors there.

    A parameter that several modules share gets one memory.
    """
    memories: dict[Tensor, Tensor] = {}

    def memory(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor.to(device)
        if tensor not in memories:
            memories[tensor] = torch.empty_like(tensor, device=device)
        return memories[tensor]

    for module in modules:
        module._apply(memory)


def to_device_or_meta(module: nn.Module, device: torch.device) -> None:
    """Move a module to `device`, but leave its meta tensors."""
    if any(
        tensor.device not in (device, META) for tensor in (*module.parameters(), *module.buffers())
    ):
        module._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))


def local_rows(tensor: Tensor) -> tuple[Tensor, int, int]:
    """Return this rank's part of a tensor, and the rows [start, stop) of the whole that it holds.

    Raises:
        NotImplementedError: the tensor is sharded by another dimension than its first, or more than
            once.
    """
    start = 0
    stop = tensor.shape[0] if tensor.ndim else 1
    if not hasattr(tensor, "placements"):
        return tensor, start, stop
    from torch.distributed.tensor import DTensor, Shard

    assert isinstance(tensor, DTensor)
    sharded = [
        (dim, place) for dim, place in enumerate(tensor.placements) if not place.is_replicate()
    ]
    if len(sharded) > 1 or any(not isinstance(place, Shard) or place.dim for _, place in sharded):
        raise NotImplementedError(
            f"a tensor with placements {tensor.placements}: only its first dimension may be cut"
        )
    for dim, _ in sharded:
        coordinate = tensor.device_mesh.get_coordinate()
        assert coordinate is not None
        # as torch.chunk: equal parts, the last ones may be short
        share = -(-stop // tensor.device_mesh.size(dim))
        start = min(stop, share * coordinate[dim])
        stop = min(stop, share * (coordinate[dim] + 1))
    return tensor.to_local(), start, stop


class RowsAsTensors(Mapping[str, Tensor]):
    """Whole float32 tensors by name, each read when it is asked for."""

    def __init__(self, read: ReadRows, shapes: Mapping[str, Sequence[int]]) -> None:
        """Give the tensors of these shapes that `read` returns."""
        self._read = read
        self._shapes = shapes

    def __getitem__(self, name: str) -> Tensor:
        rows = self._shapes[name][0] if self._shapes[name] else 1
        return self._read(name, 0, rows).float().view(*self._shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


@torch.no_grad()
def fill(named: Iterable[tuple[str, Tensor]], read: ReadRows) -> None:
    """Fill tensors from `read`, this rank's rows of each.

    Args:
        named: name and tensor, of any dtype and device.
        read: see `ReadRows`.
    """
    for name, tensor in named:
        part, start, stop = local_rows(tensor)
        if not part.ndim:
            part.copy_(read(name, 0, 1).view(()))
            continue
        size = max(1, part[:1].numel() * 4)
        step = max(1, PART // size)
        for low in range(start, stop, step):
            high = min(stop, low + step)
            part[low - start : high - start].copy_(read(name, low, high))
