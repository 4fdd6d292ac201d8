"""The setting `precision`: storage of the weights, precision of the arithmetic, tensors of a
checkpoint.

    precision     weights                     arithmetic  gradients  moments   bytes per parameter
    fp32          float32                     float32     float32    float32   16 / shards
    bf16          float32                     bfloat16    float32    float32   16 / shards
    bf16-split    bfloat16 and 16 low bits    bfloat16    bfloat16   float32   14

Trained weights are float32 with all three, and a checkpoint holds their float32 values independent
of the storage: one written with any of the settings loads with any other, on any mesh, bit for bit.
The sequence is: build the policy in float32 (or load it), `store`, shard, `make_optimizer`. Casting
weights before `store` loses their low bits.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from understudy.compile import missing_compiler
from understudy.distributed.torch_release import has_grad_dtype
from understudy.optim.adamw import Float32AdamW
from understudy.optim.param_groups import parameter_groups
from understudy.optim.state import check_moments, grad_dtype, local
from understudy.policies.common.layers import Conv1d, Conv2d, Embedding, Linear
from understudy.policies.policy import Policy

if TYPE_CHECKING:
    from understudy.config.lora import LoraConfig
    from understudy.config.train import OptimConfig

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def compute_dtype(precision: str) -> Literal["float32", "bfloat16"]:
    """Return the precision of the network's arithmetic (`PolicyConfig.compute`)."""
    return "float32" if precision == "fp32" else "bfloat16"


def store(policy: Policy, precision: str) -> dict[str, Tensor]:
    """Convert the weights of a float32 policy to their storage, in place, before sharding.

    With bf16-split every trained parameter becomes bfloat16, small ones too, since FSDP2 needs one
    dtype per group. Frozen parameters (`narrow_base`), buffers (statistics) and the parameters of
    float32 modules stay as they are.

    Returns:
        Float32 values of the parameters that became bfloat16, by name, for `make_optimizer`; empty
        with the other settings.

    Raises:
        ValueError: a trained parameter is not float32.
    """
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        if parameter.dtype != torch.float32:
            raise ValueError(
                f"{name} is {parameter.dtype}: training starts from float32 weights; their low "
                "bits count"
            )
    if precision != "bf16-split":
        return {}
    whole = set(chain.from_iterable(module.parameters() for module in policy.float32_modules()))
    masters = {name: p.detach() for name, p in trained.items() if p not in whole}
    for parameter in trained.values():
        if parameter not in whole:
            # the float32 values live on in `masters`
            parameter.data = parameter.data.to(torch.bfloat16)
    return masters


def narrow_base(
    policy: Policy, lora: "LoraConfig", dtypes: Mapping[str, torch.dtype]
) -> dict[str, int]:
    """Convert the frozen matrices below adapters to the dtype `lora.base`, in place, before
    sharding.

    Only layers that cast their weight to the dtype of their input are converted
    (`policies/common/layers.py`), so the arithmetic is the same as with float32 weights of these
    values.

    Args:
        policy: the policy with adapters, in float32.
        lora: settings of the adapters.
        dtypes: dtypes in the file or checkpoint that the parameters are read from, by name.

    Returns:
        Number of weights of each parameter that is rounded.
    """
    if not lora.rank or lora.base == "float32":
        return {}
    whole = set(chain.from_iterable(part.modules() for part in policy.float32_modules()))
    rounded = {}
    for path, module in policy.named_modules():
        name = f"{path}.weight"
        if not isinstance(module, Linear | Conv1d | Conv2d | Embedding) or module in whole:
            continue
        exact = dtypes.get(name) == torch.bfloat16
        if not module.weight.requires_grad and (exact or lora.base == "bfloat16"):
            module.weight.data = module.weight.data.to(torch.bfloat16)
            if not exact:
                rounded[name] = module.weight.numel()
    return rounded


def make_optimizer(
    policy: Policy, optim: "OptimConfig", masters: Mapping[str, Tensor], *, accumulates: bool
) -> Float32AdamW:
    """Make the optimizer over the stored and sharded policy; `masters` is the result of `store`.

    `accumulates`: gradients of several micro-batches may be summed.

    Split weights are updated by the compiled kernel on a GPU with a compiler, else by its
    specification.
    """
    device = next(policy.parameters()).device
    optimizer = Float32AdamW(
        parameter_groups(
            [(name, p) for name, p in policy.named_parameters() if p.requires_grad],
            optim,
            policy.config.PARTS,
        ),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        compiled=device.type == "cuda" and missing_compiler(device) is None,
    )
    for name, parameter in policy.named_parameters():
        if name in masters:
            optimizer.set_master(parameter, masters[name])
            if accumulates and local(parameter) is parameter and has_grad_dtype():
                # Sums of micro-batches lose digits in bfloat16. (FSDP2 sums them in float32 by
                # itself. An older torch without this is refused where there are sums:
                # `distributed/torch_release.py`.)
                parameter.grad_dtype = torch.float32
    check_moments(optimizer)
    return optimizer


def named_tensors(
    policy: nn.Module, optimizer: Float32AdamW, average: nn.Module | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name: weights, average, moments and step counts,
    float32.

    Frozen weights keep the dtype `lora.base`.

    To resume, fill them in place and call `restore`. Split weights are joined copies, 4 bytes per
    parameter; all other tensors are the live ones. The average of frozen parameters is left out: it
    is their value.
    """
    tensors = {f"weights/{name}": tensor for name, tensor in policy.state_dict().items()}
    for name, parameter in policy.named_parameters():
        tensors[f"weights/{name}"] = optimizer.master(parameter)
        kinds = MOMENTS if parameter in optimizer.state else ()
        for kind in kinds:
            tensors[f"{kind}/{name}"] = optimizer.state[parameter][kind]
    if average is not None:
        held = frozen_names(policy)
        tensors |= {
            f"average/{name}": tensor
            for name, tensor in average.state_dict().items()
            if f"weights/{name}" not in held
        }
    return tensors


def frozen_names(policy: nn.Module) -> set[str]:
    """Return the names of those tensors of a checkpoint that never change in a run: the frozen
    parameters.
    """
    return {
        f"weights/{name}"
        for name, parameter in policy.named_parameters()
        if not parameter.requires_grad
    }


def export_names(stored: Iterable[str]) -> dict[str, str]:
    """Return the tensors to export: the average where there is one, else the weight, by the
    policy's name.

    Args:
        stored: names of the tensors of a checkpoint, as of `named_tensors`.

    Returns:
        Name in the policy -> name in the checkpoint.
    """
    stored = list(stored)
    names: dict[str, str] = {}
    for kind in ("weights/", "average/"):
        names |= {name.removeprefix(kind): name for name in stored if name.startswith(kind)}
    return names


def restore(
    policy: nn.Module,
    optimizer: Float32AdamW,
    tensors: Mapping[str, Tensor],
    average: nn.Module | None = None,
) -> None:
    """Set the masters, and the average of frozen parameters, from loaded `named_tensors`.

    Raises:
        ValueError: a moment has fewer than 32 bits.
    """
    if average is not None:  # sharding copies the frozen parameters for the average
        with torch.no_grad():
            for averaged, (name, parameter) in zip(
                average.parameters(), policy.named_parameters(), strict=True
            ):
                if not parameter.requires_grad:
                    local(averaged).copy_(local(tensors[f"weights/{name}"]))
    for name, parameter in policy.named_parameters():
        if parameter in optimizer.state:
            optimizer.set_master(parameter, tensors[f"weights/{name}"])
    check_moments(optimizer)


class Storage(NamedTuple):
    """Dtypes and bytes of some parameters on this rank."""

    parameters: int
    """Numbers of the whole parameters."""
    weights: set[torch.dtype]
    gradients: set[torch.dtype]
    """Those of the next backward pass; empty for parameters without gradients."""
    state: set[torch.dtype]
    """Of the optimizer's tensors, step counts apart."""
    size: int
    """Bytes of weights, gradients and optimizer's tensors."""
    per_parameter: float
    """Bytes per number of this rank."""


def storage(params: Sequence[Tensor], optimizer: Optimizer, gradients: bool) -> Storage:
    """Return the storage of parameters; `gradients`: whether they will have some."""
    state: list[Tensor] = []
    for p in params:
        of_parameter = optimizer.state.get(p, {}).items()
        state += [t for kind, t in of_parameter if kind != "step" and isinstance(t, Tensor)]
    due = [(p, grad_dtype(p)) for p in params] if gradients else []
    size = sum(local(t).numel() * t.element_size() for t in (*params, *state))
    size += sum(local(p).numel() * dtype.itemsize for p, dtype in due)
    return Storage(
        sum(p.numel() for p in params),
        {t.dtype for t in params},
        {dtype for _, dtype in due},
        {t.dtype for t in state},
        size,
        size / max(1, sum(local(p).numel() for p in params)),
    )


def table(
    policy: nn.Module, optimizer: Float32AdamW, average: nn.Module | None, compute: str
) -> str:
    """Format dtypes and bytes on this rank of each group of parameters, one line each."""
    rows = [
        (
            "",
            "parameters",
            "kept in",
            "computes in",
            "gradients",
            "optimizer state",
            "B/param",
            "MiB",
        )
    ]

    def row(label: str, params: list[Tensor], gradients: bool) -> None:
        stored = storage(params, optimizer, gradients)
        rows.append(
            (
                label,
                f"{stored.parameters:,}",
                words(stored.weights),
                compute,
                words(stored.gradients),
                words(stored.state),
                f"{stored.per_parameter:.1f}",
                f"{stored.size / 2**20:.2f}",
            )
        )

    for number, group in enumerate(optimizer.param_groups):
        label = f"group {number}, weight decay {group['weight_decay']:g}"
        if (factor := group.get("lr_scale", 1.0)) != 1.0:
            label += f", lr x {factor:g}"
        row(label, group["params"], gradients=True)
    stepped = set(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    frozen: list[Tensor] = [p for p in policy.parameters() if p not in stepped]
    if frozen:
        row("frozen", frozen, gradients=False)
    if average is not None:  # which shares frozen parameters in one process
        held = {local(p).data_ptr() for p in policy.parameters()} - {0}  # 0: an empty shard
        row(
            "average",
            [p for p in average.parameters() if local(p).data_ptr() not in held],
            gradients=False,
        )
    return "\n".join(align(rows))


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format the rows of a table as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append("  ".join(cells).rstrip())
    return lines


def words(dtypes: Iterable[torch.dtype]) -> str:
    """Return the names of dtypes for a table, `-` for none."""
    return " + ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or "-"
