"""Dummy data, fresh weights and states of the network for `gpu_pi05_rows.py`, all made on the
device.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from understudy.config.lora import LoraConfig
from understudy.config.train import OptimConfig, ScheduleConfig, TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings, Sizes
from understudy.policies.pi05.first_weights import ONES
from understudy.policies.pi05.network import Pi0Network
from understudy.policies.pi05.targets import EXTENTS, Extent
from understudy.train.precision import compute_dtype
from understudy.train.state import PreparedBatch, TrainState, assemble, build_on_meta
from understudy_data.order.random import make_key

Row = Mapping[str, Any]

CAMERAS = tuple(f"observation.images.{name}" for name in ("base", "left_wrist", "right_wrist"))
TEXT = {"base": 200, "tiny": 16}
"""Tokens of the prompt."""
PIXELS = {"base": 224, "tiny": 64}


def sizes_of(size: str) -> Sizes:
    return Sizes.BASE if size == "base" else Sizes.TINY


def sample_tokens(size: str) -> dict[str, int]:
    """Tokens of a sample: images, prompt, actions."""
    sizes = sizes_of(size)
    return {
        "images": len(CAMERAS) * sizes.vision.tokens,
        "text": TEXT[size],
        "actions": sizes.chunk,
    }


def train_config(row: Row) -> TrainConfig:
    return TrainConfig(
        steps=10**6,
        batch_size=row["batch"],
        policy=Pi05Settings(size=row["size"], prompt_tokens=TEXT[row["size"]], history=ages(row)),
        optim=OptimConfig(lr=2.5e-5),
        lora=LoraConfig(rank=row.get("lora", 0), base="bfloat16"),
        schedule=ScheduleConfig(kind="constant", warmup_steps=0),
        device=row["device"],
        precision=row["precision"],
        compile=row.get("compile", False),
        activation_checkpoint=row["checkpoint"],
        torch_threads=torch.get_num_threads(),
        max_num_tokens=10**6 if row.get("packed") else None,
    ).resolved()


def ages(row: Row) -> tuple[float, ...]:
    """Ages of the past frames of a row, one second apart; `history` counts the present one."""
    return tuple(float(age) for age in range(1, row.get("history", 1)))


def policy_config(config: TrainConfig) -> Pi05PolicyConfig:
    sizes = sizes_of(config.policy.size)  # type: ignore[attr-defined]
    return Pi05PolicyConfig(
        size=config.policy.size,  # type: ignore[attr-defined]
        prompt_tokens=config.policy.prompt_tokens,  # type: ignore[attr-defined]
        action_dim=sizes.dim,
        state_dim=sizes.dim,
        cameras=CAMERAS,
        chunk=sizes.chunk,
        compute=compute_dtype(config.precision),
        history=config.policy.history,  # type: ignore[attr-defined]
    )


def normalization(dim: int) -> dict[str, Any]:
    unit = {"offset": [0.0] * dim, "spread": [1.0] * dim}
    return {"action": unit, "observation.state": unit}


class DeviceWeights:
    """Rows of fresh weights, drawn on the device: 3.4 billion numbers from one core would take
    minutes.

    No weight is left at 0. With the zero gates of a fresh expert the gradients of the whole tower
    are 0, and matrix products of zeros take less power and time than those of a real run.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], device: torch.device, seed: int = 0
    ) -> None:
        self._shapes = shapes
        self._device = device
        self._seed = seed
        self._drawn: tuple[str, Tensor] | None = None

    def __call__(self, name: str, start: int, stop: int) -> Tensor:
        if self._drawn is None or self._drawn[0] != name:
            self._drawn = None  # before the next is drawn: the embedding alone has 2 GB
            self._drawn = name, self._draw(name, self._shapes[name])
        return self._drawn[1][start:stop]

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(make_key(self._seed, name))
        values = torch.randn(shape, generator=generator, device=self._device)
        if len(shape) > 1:
            return values.mul_(prod(shape[1:]) ** -0.5)
        return values.mul_(0.02).add_(1.0 if name.endswith(ONES) else 0.0)

    def clear(self) -> None:
        self._drawn = None


def make_state(row: Row, mesh: Mesh) -> TrainState:
    """The state of a run, made as a run makes it, with weights that are drawn on the device."""
    config = train_config(row)
    network = policy_config(config)
    policy = build_on_meta(config, network, normalization(network.action_dim))
    read = DeviceWeights(
        {name: tuple(p.shape) for name, p in policy.named_parameters()}, mesh.device
    )
    state = assemble(config, policy, mesh, None, read)
    read.clear()
    return state


def batches(row: Row, device: torch.device) -> Iterator[PreparedBatch]:
    """Batches as they leave the loader's threads, on the device: the same samples, at the next
    positions of the run.
    """
    size = row["size"]
    count = row["batch"]
    sizes = sizes_of(size)
    side = PIXELS[size]
    text = TEXT[size]
    generator = torch.Generator(device).manual_seed(1)

    def whole(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(0, high, shape, generator=generator, device=device, dtype=dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    lengths = [text] * count
    shown = [len(CAMERAS)] * count  # cameras of each sample, the first ones
    if row.get("masked"):  # prompts of different lengths, and samples without the last camera
        lengths = [text - number % max(1, text // 4) for number in range(count)]
        shown = [len(CAMERAS) - (number % 4 == 3) for number in range(count)]
    if row.get("mixture"):  # robots with one, two and three cameras, and short and long prompts
        lengths = [text if number % 2 else max(1, text // 20) for number in range(count)]
        shown = [1 + number % len(CAMERAS) for number in range(count)]
    has = [tuple(camera < each for camera in range(len(CAMERAS))) for each in shown]
    pads = torch.arange(text) >= torch.tensor(lengths)[:, None]
    past = (row["history"],) if row.get("history", 1) > 1 else ()
    shape = (count, *past, 3, side, side)
    values: dict[str, Any] = {camera: whole(256, *shape, dtype=torch.uint8) for camera in CAMERAS}
    for number, camera in enumerate(CAMERAS):
        if not all(each[number] for each in has):
            values[f"{camera}_is_missing"] = torch.tensor([not each[number] for each in has]).to(
                device
            )
        if past:
            values[f"{camera}_is_pad"] = torch.zeros(count, *past, dtype=torch.bool, device=device)
    values |= {
        "observation.state": normal(count, sizes.dim),
        "action": normal(count, sizes.chunk, sizes.dim),
        "action_is_pad": torch.zeros(count, sizes.chunk, dtype=torch.bool, device=device),
        "prompt_tokens": whole(sizes.vocab, count, text),
        "prompt_is_pad": pads.to(device),
        "task": ["pick up the red block"] * count,
        "source": torch.zeros(count, dtype=torch.int64),
        EXTENTS: [Extent(each, length) for each, length in zip(has, lengths)],
    }
    position = torch.arange(count)
    while True:
        yield PreparedBatch(values | {"position": position})
        position = position + count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gib(count: float) -> float:
    return round(count / 2**30, 3)


def inputs(sizes: Sizes, size: str, count: int, device: torch.device) -> dict[str, Any]:
    """Arguments of `Pi0Network.sample`, without masks."""
    side = PIXELS[size]
    dim = sizes.dim
    generator = torch.Generator(device).manual_seed(2)
    images = (
        torch.rand((count, len(CAMERAS), 3, side, side), generator=generator, device=device) * 2 - 1
    )
    tokens = torch.randint(0, sizes.vocab, (count, TEXT[size]), generator=generator, device=device)
    noise = torch.randn((count, sizes.chunk, dim), generator=generator, device=device)
    masks = {"image_masks": None, "token_masks": None}
    return {
        "images": images,
        "tokens": tokens,
        "state": torch.zeros(count, dim, device=device),
        "noise": noise,
    } | masks


def sampler(sizes: Sizes, stored: str, device: torch.device) -> Pi0Network:
    """Network that computes in bfloat16, weights stored in float32 or bfloat16 (float32 by
    contract: left so).
    """
    with torch.device("meta"):
        network = Pi0Network(sizes, torch.bfloat16)
    keep = {id(module) for module in (network.vision.patch, network.vision.position)}
    keep |= {
        id(module)
        for name, module in network.named_children()
        if name.startswith(("action_", "time_"))
    }
    read = DeviceWeights({name: tuple(p.shape) for name, p in network.named_parameters()}, device)
    for prefix, module in network.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            whole = stored == "float32" or id(module) in keep
            value = read(name, 0, parameter.shape[0]).to(torch.float32 if whole else torch.bfloat16)
            setattr(module, name.rpartition(".")[2], nn.Parameter(value, requires_grad=False))
    read.clear()
    return network


def forward_flops(sizes: Sizes, images: int, text: int, actions: int) -> float:
    """Operations of a forward pass: two per weight and token, and 4 heads * head_dim per pair of
    tokens and layer.
    """
    v = sizes.vision
    a = sizes.vlm
    b = sizes.expert
    prefix = images + text
    heads = a.num_heads * a.head_dim

    def tower(t: Any) -> int:
        return (
            t.width * (2 * t.num_heads + 2 * t.num_kv_heads) * t.head_dim + 3 * t.width * t.mlp_dim
        )

    # all that the last layer of the tower computes
    keys = 2 * a.width * a.num_kv_heads * a.head_dim
    vision = (
        v.depth * (4 * v.width**2 + 2 * v.width * v.mlp)
        + 3 * v.patch**2 * v.width
        + v.width * a.width
    )
    pairs = v.depth * v.width * v.tokens * images
    pairs += heads * ((a.depth - 1) * prefix**2 + a.depth * actions * (prefix + actions))
    products = (
        images * vision + prefix * ((a.depth - 1) * tower(a) + keys) + actions * b.depth * tower(b)
    )
    return 2.0 * products + 4.0 * pairs


def failure(error: BaseException) -> dict[str, Any]:
    """Result of a row that failed."""
    words = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in words.lower():
        return {"error": "OOM"}
    return {"error": f"{type(error).__name__}: {words[:400]}"}


def attempt(measure: Callable[..., Any], *args: Any) -> Any:
    """Return `measure(*args)`, or its failure."""
    try:
        return measure(*args)
    except Exception as error:
        return failure(error)
