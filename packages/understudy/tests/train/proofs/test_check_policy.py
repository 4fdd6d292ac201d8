"""Proofs of policies: each planted fault is named, and sound policies pass."""

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import understudy as us
from understudy.policies import (
    ACTION,
    STATE,
    Loss,
    Normalizer,
    Policy,
    PolicyConfig,
    PolicySettings,
    PolicyType,
    RandomSpec,
    valid_elements,
)
from understudy.testing import policies
from understudy.train.proofs.check import PolicyReport
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import main

PAD = "action_is_pad"
NAMES = [
    *("padding", "padding of NaN", "denominator", "noise", "noise by position"),
    *("sums", "repeat", "act", "save"),
]


@dataclass(frozen=True, kw_only=True)
class ToySettings(PolicySettings):
    type: Literal["toy"] = "toy"
    width: int = 16


@dataclass(frozen=True)
class ToyConfig(ToySettings, PolicyConfig):
    pass


class Toy(Policy):
    """Denoising of actions from the state: noise by position, a mask, and dropout."""

    def __init__(self, config: Any = None, normalization: Any = None) -> None:
        super().__init__()
        self.config = config or ToyConfig(action_dim=3, state_dim=2, chunk=4)
        ones = {
            key: {"offset": [0.0] * n, "spread": [1.0] * n} for key, n in self.config.widths.items()
        }
        self.normalizer = Normalizer(normalization or ones, self.config.widths)
        a, s, width = self.config.action_dim, self.config.state_dim, self.config.width
        self.net = nn.Sequential(
            nn.Linear(a + s, width), nn.Dropout(0.2), nn.Tanh(), nn.Linear(width, a)
        )

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("denoise",)

    def random_spec(self, use: str) -> dict[str, RandomSpec]:
        return {"noise": RandomSpec("normal", (self.config.chunk, self.config.action_dim))}

    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"]

    def mask(self, batch: Any) -> Tensor:
        return batch[PAD]

    def counts(self, batch: Any, draws: Any) -> dict[str, Tensor]:
        return {"denoise": valid_elements(self.mask(batch), 1, self.config.action_dim)}

    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        noise = self.noise(batch, draws)
        pad = self.mask(batch)[..., None]
        target = torch.where(pad, 0.0, self.normalizer.actions(batch))
        error = torch.where(pad, 0.0, self.predict(batch, target + noise) - noise)
        return {
            "denoise": Loss(error.square().sum(dim=(1, 2)), self.counts(batch, draws)["denoise"])
        }

    def predict(self, batch: Any, noisy: Tensor) -> Tensor:
        state = batch[STATE][:, None].expand(-1, noisy.shape[1], -1)
        return self.net(torch.cat([state, noisy], dim=-1))

    @torch.no_grad()
    def act(self, batch: Any, draws: Any, steps: int = 10, mode: str = "policy") -> Tensor:
        return self.normalizer.robot_actions(self.predict(batch, draws["noise"]), batch)


class IgnoresMask(Toy):
    def mask(self, batch: Any) -> Tensor:
        return torch.zeros(len(batch[ACTION]), self.config.chunk, dtype=torch.bool)


class MisspeltKey(Toy):
    def mask(self, batch: Any) -> Tensor:
        pad = batch.get("actions_is_pad")
        return torch.zeros(batch[ACTION].shape[:2], dtype=torch.bool) if pad is None else pad


class Multiplies(Toy):
    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        kept = (~self.mask(batch))[..., None].float()
        error = (self.predict(batch, kept * draws["noise"]) - batch[ACTION]).square() * kept
        return {"denoise": Loss(error.sum(dim=(1, 2)), self.counts(batch, draws)["denoise"])}


class CountsPadding(Toy):
    def counts(self, batch: Any, draws: Any) -> dict[str, Tensor]:
        return {"denoise": torch.full((len(batch[ACTION]),), 12)}


class SharesNoise(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"][:1].expand_as(draws["noise"])


class ShiftsNoise(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"].roll(1, 0)


class NoiseOfRank(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"] + int(os.environ.get("RANK", "0"))


class NoiseOfGroup(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        joined = torch.distributed.is_initialized()
        return draws["noise"] + (torch.distributed.get_rank() if joined else 0)


class OtherCounts(Toy):
    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        loss = super().losses(batch, draws)["denoise"]
        return {"denoise": loss._replace(count=loss.count + 1)}


class MeanOfMeans(Toy):
    """The mean over the batch is no mean over elements."""

    scalar_losses = True

    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        return {"denoise": super().losses(batch, draws)["denoise"].sum.sum()}


class FreshEntropy(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"] + float(np.random.default_rng().normal())


class GlobalGenerator(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"] + torch.randn(len(batch[ACTION]), 1, 1)


class BatchStatistics(Toy):
    def predict(self, batch: Any, noisy: Tensor) -> Tensor:
        return super().predict(batch, noisy - noisy.mean(dim=0))


class BatchNormAct(Toy):
    def __init__(self, config: Any = None, normalization: Any = None) -> None:
        super().__init__(config, normalization)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    @torch.no_grad()
    def act(self, batch: Any, draws: Any, steps: int = 10, mode: str = "policy") -> Tensor:
        noise = self.norm(draws["noise"]) if len(draws["noise"]) > 1 else draws["noise"]
        return self.predict(batch, noise)


class UnsavedBuffer(Toy):
    def __init__(self, config: Any = None, normalization: Any = None) -> None:
        super().__init__(config, normalization)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        if self.training:
            self.get_buffer("seen").add_(1)
        return super().losses(batch, draws)

    def predict(self, batch: Any, noisy: Tensor) -> Tensor:
        return super().predict(batch, noisy) * (1 + self.get_buffer("seen").clone())


class Infinite(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return draws["noise"] / 0.0


TOY = PolicyType(ToySettings, Toy)
IGNORES = PolicyType(ToySettings, IgnoresMask)
GLOBAL = PolicyType(ToySettings, GlobalGenerator)
UNSAVED = PolicyType(ToySettings, UnsavedBuffer)

FAULTS: dict[type[Toy], tuple[str, str]] = {
    IgnoresMask: ("padding", "never reads 'action_is_pad'"),
    MisspeltKey: ("padding", "actions_is_pad"),
    Multiplies: ("padding of NaN", "where"),
    CountsPadding: ("denominator", ""),
    SharesNoise: ("noise", ""),
    ShiftsNoise: ("noise", ""),
    NoiseOfRank: ("noise by position", "rank"),
    NoiseOfGroup: ("noise by position", "rank"),
    BatchStatistics: ("noise by position", ""),
    OtherCounts: ("sums", ""),
    MeanOfMeans: ("sums", ""),
    FreshEntropy: ("repeat", ""),
    GlobalGenerator: ("repeat", "random_spec"),
    Infinite: ("repeat", "finite"),
    BatchNormAct: ("act", "BatchNorm"),
    UnsavedBuffer: ("save", "buffer"),
}


def failed(report: PolicyReport) -> dict[str, str]:
    return {proof.name: str(proof) for proof in report.proofs if proof.result == "failed"}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_named(kind: type[Toy]) -> None:
    name, word = FAULTS[kind]
    report = us.check_policy(kind)
    lines = failed(report)
    assert name in lines, report
    assert word in lines[name]
    assert not report.passed
    proof = next(proof for proof in report.proofs if proof.name == name)
    assert proof.cause
    assert proof.fix


def test_a_fault_fails_its_own_proof_alone() -> None:
    """Faults of one kind do not hide behind others. A mask that is ignored spoils NaN, too."""
    for kind in (
        NoiseOfRank,
        OtherCounts,
        BatchNormAct,
        CountsPadding,
        GlobalGenerator,
        SharesNoise,
    ):
        names = set(failed(us.check_policy(kind)))
        assert names <= {FAULTS[kind][0], "noise", "noise by position", "sums"}, kind
        assert "padding" not in names


class OwnScalar(Toy):
    scalar_losses = True

    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        loss = super().losses(batch, draws)["denoise"]
        return {"denoise": loss.sum.sum() / loss.count.sum().clamp(min=1)}


class ChangesInputs(Toy):
    def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
        batch[ACTION].mul_(0.5)
        return super().losses(batch, draws)


class FunctionalDropout(Toy):
    def __init__(self, config: Any = None, normalization: Any = None) -> None:
        super().__init__(config, normalization)
        self.mix = nn.MultiheadAttention(3, 1, dropout=0.5, batch_first=True)

    def predict(self, batch: Any, noisy: Tensor) -> Tensor:
        mixed = self.mix(noisy, noisy, noisy, key_padding_mask=batch.get(PAD))[0]
        return super().predict(batch, mixed)


class OwnDraws(Toy):
    def random_spec(self, use: str) -> dict[str, RandomSpec]:
        return {} if use != "act" else super().random_spec(use)

    def noise(self, batch: Any, draws: Any) -> Tensor:
        return torch.randn(batch[ACTION].shape) + random.random()


class NoNoise(Toy):
    def noise(self, batch: Any, draws: Any) -> Tensor:
        return torch.zeros_like(draws["noise"])


@pytest.mark.parametrize(
    "make",
    [
        Toy,
        OwnScalar,
        OwnDraws,
        NoNoise,
        ChangesInputs,
        FunctionalDropout,
        lambda: Toy(ToyConfig(action_dim=1, state_dim=1, chunk=1)),
        lambda: policies.policy(),
        lambda: policies.policy(future=True),
        lambda: policies.policy(max_delay=2),
        lambda: Toy().eval(),
        lambda: Toy().requires_grad_(False),
    ],
)
def test_sound_policies_pass(make: Callable[[], Policy]) -> None:
    report = us.check_policy(make())
    assert failed(report) == {}
    assert [proof.name for proof in report.proofs] == NAMES


@pytest.mark.parametrize("name", ["flow", "pi05"])
def test_registered_types_pass(name: str) -> None:
    report = us.check_policy(name)
    assert [proof.result for proof in report.proofs] == ["passed"] * len(NAMES), report


# -- modules of others -----------------------------------------------------------------------------


class Feature(SimpleNamespace):
    shape: tuple[int, ...]


class Foreign(nn.Module):
    """A small policy with LeRobot's interface, outside of this project."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            input_features={STATE: Feature(shape=(2,))},
            output_features={ACTION: Feature(shape=(3,))},
            action_delta_indices=list(range(4)),
            n_obs_steps=1,
        )
        self.norm: nn.Module = nn.Identity()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 12))
        self.queue: list[Tensor] = []

    def reset(self) -> None:
        self.queue = []

    def chunk(self, batch: Any) -> Tensor:
        return self.net(self.norm(batch[STATE])).view(-1, 4, 3)

    def noise(self, batch: Any) -> Tensor:
        return torch.randn_like(batch[ACTION])

    def forward(self, batch: Any) -> Any:
        target = self.target(batch) + self.noise(batch)
        return self.reduced(batch, (self.chunk(batch) - target).square()), {"l2": 0.0}

    def target(self, batch: Any) -> Tensor:
        return torch.where(batch[PAD][..., None], 0.0, batch[ACTION])

    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        pad = batch[PAD][..., None].expand_as(error)
        return torch.where(pad, 0.0, error).sum() / (~pad).sum()

    @torch.no_grad()
    def select_action(self, batch: Any) -> Tensor:
        if not self.queue:
            self.queue = list(self.chunk(batch).unbind(dim=1))
        return self.queue.pop(0)


class ForeignRaw(Foreign):
    def target(self, batch: Any) -> Tensor:
        return batch[ACTION]


class ForeignIgnores(ForeignRaw):
    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        return error.mean()


class ForeignMisspells(ForeignRaw):
    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        return super().reduced(batch, error) if "action_pad" in batch else error.mean()


class ForeignMultiplies(ForeignRaw):
    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        kept = (~batch[PAD])[..., None].expand_as(error)
        return (error * kept).sum() / kept.sum()


class ForeignDivides(Foreign):
    """As LeRobot's ACT: the mean is over padded steps, too."""

    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        return (error * ~batch[PAD][..., None]).mean()


class ForeignShares(Foreign):
    def noise(self, batch: Any) -> Tensor:
        return torch.randn(1, 4, 3)


class ForeignFixed(Foreign):
    def noise(self, batch: Any) -> Tensor:
        return torch.randn(batch[ACTION].shape, generator=torch.Generator().manual_seed(0))


class ForeignRank(Foreign):
    def noise(self, batch: Any) -> Tensor:
        seed = int(os.environ.get("LOCAL_RANK", "0"))
        return super().noise(batch) + seed


class ForeignSum(Foreign):
    def reduced(self, batch: Any, error: Tensor) -> Tensor:
        return torch.where(batch[PAD][..., None], 0.0, error).sum()


class ForeignReduction(Foreign):
    def forward(self, batch: Any, reduction: str = "mean") -> Any:
        loss = super().forward(batch)[0]
        return (loss if reduction == "mean" else (2 * loss).repeat(len(batch[ACTION]))), {}


class ForeignEntropy(Foreign):
    def noise(self, batch: Any) -> Tensor:
        return super().noise(batch) + float(np.random.default_rng().normal())


class ForeignNorm(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, track_running_stats=False)

    def chunk(self, batch: Any) -> Tensor:
        state = batch[STATE] if len(batch[STATE]) == 1 else self.norm(batch[STATE])
        return self.net(state).view(-1, 4, 3)


class ForeignBuffer(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(1)

    def forward(self, batch: Any) -> Any:
        if self.training:
            self.scale = self.scale.detach() + 1
        return super().forward(batch)

    def chunk(self, batch: Any) -> Tensor:
        return super().chunk(batch) * self.scale


FOREIGN = {
    ForeignIgnores: ("padding", PAD),
    ForeignMisspells: ("padding", "action_pad"),
    ForeignMultiplies: ("padding of NaN", "where"),
    ForeignRaw: ("padding of NaN", "where"),
    ForeignDivides: ("denominator", "mean"),
    ForeignShares: ("noise", "share"),
    ForeignFixed: ("noise", "step"),
    ForeignRank: ("noise by position", "rank"),
    ForeignSum: ("sums", "mean"),
    ForeignReduction: ("sums", "reduction"),
    ForeignEntropy: ("repeat", ""),
    ForeignNorm: ("act", "BatchNorm"),
    ForeignBuffer: ("save", "buffer"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_fault_of_a_foreign_module_is_named(kind: type[Foreign]) -> None:
    name, word = FOREIGN[kind]
    report = us.check_policy(kind)
    assert name in failed(report), report
    assert word in failed(report)[name]


def test_a_sound_foreign_module_passes_what_can_be_asked() -> None:
    report = us.check_policy(Foreign())
    assert failed(report) == {}
    asked = [proof.name for proof in report.proofs if proof.result == "not asked"]
    assert asked == ["noise by position"]
    assert all(proof.cause for proof in report.proofs if proof.result == "not asked")


class Forms(Foreign):
    """Losses of other forms."""

    form: Any = staticmethod(lambda loss, error: loss)

    def forward(self, batch: Any) -> Any:
        loss = super().forward(batch)[0]
        return type(self).form(loss, batch)


@pytest.mark.parametrize(
    "form",
    [
        lambda loss, batch: loss,
        lambda loss, batch: (loss, None),
        lambda loss, batch: [loss, {}],
        lambda loss, batch: {"loss": loss},
        lambda loss, batch: SimpleNamespace(loss=loss),
        lambda loss, batch: loss.double(),
    ],
)
def test_losses_of_other_forms_are_read(form: Any) -> None:
    kind = type("Form", (Forms,), {"form": staticmethod(form)})
    assert failed(us.check_policy(kind)) == {}


@pytest.mark.parametrize("form", [lambda loss, b: None, lambda loss, b: 3.0, lambda loss, b: ()])
def test_no_loss_is_refused(form: Any) -> None:
    kind = type("Form", (Forms,), {"form": staticmethod(form)})
    with refused("loss", kind=ConfigError):
        us.check_policy(kind)


def test_a_policy_that_raises_is_refused_with_its_message() -> None:
    class Raises(Foreign):
        def forward(self, batch: Any) -> Any:
            return batch["observation.depth"]

    class RaisesInAct(Foreign):
        def select_action(self, batch: Any) -> Tensor:
            raise RuntimeError("no camera")

    class RaisesInInit(Foreign):
        def __init__(self) -> None:
            raise OSError("no file")

    with refused("KeyError", "'observation.depth'", "action", kind=ConfigError):
        us.check_policy(Raises)
    assert "no camera" in failed(us.check_policy(RaisesInAct))["act"]
    with refused("OSError", kind=ConfigError):
        us.check_policy(RaisesInInit)


def test_inputs_that_nobody_declares_are_given() -> None:
    class Bare(Foreign):
        def __init__(self) -> None:
            super().__init__()
            self.config = None  # type: ignore[assignment]

    with refused("config.input_features", kind=ConfigError):
        us.check_policy(Bare)
    batch = {STATE: torch.randn(6, 2), ACTION: torch.randn(6, 4, 3)}
    lacking = us.check_policy(ForeignIgnores(), batch=batch)
    assert {p.name for p in lacking.proofs if p.result == "not asked"} >= {"padding", "denominator"}
    full = batch | {PAD: torch.zeros(6, 4, dtype=torch.bool)}
    assert failed(us.check_policy(Bare, batch=full)) == {}
    assert failed(us.check_policy(lambda: (Bare(), full))) == {}
    with refused("batch", "'action'", kind=ConfigError):
        us.check_policy(Bare(), batch={STATE: torch.randn(6, 2)})


def test_nothing_of_the_policy_changes() -> None:
    torch.manual_seed(3)
    for module in (Toy(), UnsavedBuffer(), Foreign()):
        module.net[1].eval()
        module.net[0].weight.requires_grad_(False)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        tensors = {n: v.clone() for n, v in [*module.named_parameters(), *module.named_buffers()]}
        modes = [own.training for own in module.modules()]
        generators = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        us.check_policy(module)
        now = dict([*module.named_parameters(), *module.named_buffers()])
        assert all(torch.equal(value, now[name]) for name, value in tensors.items())
        assert all(p.grad is None or bool((p.grad == 1).all()) for p in module.parameters())
        assert [own.training for own in module.modules()] == modes
        assert torch.equal(generators[0], torch.get_rng_state())
        assert generators[1:] == (random.getstate(), repr(np.random.get_state()))  # noqa: NPY002
    assert "RANK" not in os.environ


def test_modules_that_cannot_be_copied_or_have_other_dtypes() -> None:
    locked = Foreign()
    locked.lock = threading.Lock()  # type: ignore[assignment]
    report = us.check_policy(locked)
    assert failed(report) == {}
    assert "save" in {proof.name for proof in report.proofs if proof.result == "not asked"}
    batch = {STATE: torch.randn(6, 2), ACTION: torch.randn(6, 4, 3)}
    batch[PAD] = torch.arange(4) >= 4 - torch.arange(6)[:, None] % 4
    for dtype in (torch.float64, torch.bfloat16):
        cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        assert failed(us.check_policy(Foreign().to(dtype), batch=cast)) == {}


# -- names and the command -------------------------------------------------------------------------

CODE = Path(__file__)


def test_a_file_a_module_and_a_folder_are_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "mine_for_proofs.py").write_text(CODE.read_text())
    assert us.check_policy("mine_for_proofs:Foreign").passed
    assert not us.check_policy(f"{tmp_path}/mine_for_proofs.py:ForeignSum").passed
    policies.policy().save(tmp_path / "saved")
    assert us.check_policy(tmp_path / "saved").passed
    assert main(["check-policy", "mine_for_proofs:ForeignDivides"]) == 1
    text = capsys.readouterr().out
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:]] == NAMES
    settings = ["width", "32", "image_size", "[16, 16]"]
    assert main(["check-policy", "flow", "--settings", *settings]) == 0
    assert main(["check-policy", "flow", "--settings", "image_size", "[16, 16"]) == 2
    capsys.readouterr()
    assert main(["check-policy", "mine_for_proofs:Foreign", "--json"]) == 0
    assert '"passed": true' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flwo", ["'flow'"]),
        ("no_such_module:X", ["no_such_module"]),
        ("understudy.policies:Polcy", ["Polcy"]),
        ("none.py:X", ["none.py"]),
        ("os:getcwd", ["str"]),
        ("os:sep", ["str"]),
    ],
)
def test_unknown_names_are_refused(name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        us.check_policy(name)
    assert all(word in str(caught.value) for word in words)


def test_settings_of_a_type() -> None:
    report = us.check_policy(TOY, settings={"width": 8})
    assert failed(report) == {}
    with refused("settings", kind=ConfigError):
        us.check_policy(Foreign, settings={"width": "8"})
    with pytest.raises(ConfigError):
        us.check_policy("flow", settings={"no_such": "8"})


def test_a_dataset_is_the_batch(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(9, 8), action_dim=3, state_dim=2, cameras=()))
    for policy in (TOY, Foreign):
        report = us.check_policy(policy, data=tmp_path / "d")
        assert failed(report) == {}, report
    assert not us.check_policy(ForeignDivides, data=tmp_path / "d").passed


def test_a_wrong_shape_is_refused_with_the_keys(tmp_path: Path) -> None:
    batch = {STATE: torch.randn(6, 5), ACTION: torch.randn(6, 4, 3)}
    with pytest.raises(ConfigError, match=r"observation\.state"):
        us.check_policy(Foreign(), batch=batch)


def test_indexes_are_not_changed_and_masks_are_named() -> None:
    """Another token may lie outside of a vocabulary."""

    class Tokens(Toy):
        def losses(self, batch: Any, draws: Any, terms: Any = None, detail: bool = False) -> Any:
            assert int(batch["tokens"].max()) < 10
            return super().losses(batch, draws)

        def predict(self, batch: Any, noisy: Tensor) -> Tensor:
            shift = batch["observation.force"].mean(dim=1) if "observation.force" in batch else 0.0
            return super().predict(batch, noisy) + torch.as_tensor(shift).view(-1, 1, 1)

    batch = {
        STATE: torch.randn(6, 2),
        ACTION: torch.randn(6, 4, 3),
        PAD: torch.arange(4) >= 4 - torch.arange(6)[:, None] % 4,
        "tokens": torch.randint(0, 10, (6, 5)),
        "tokens_is_pad": torch.arange(5) >= 5 - torch.arange(6)[:, None] % 5,
        "task": ["push"] * 6,
    }
    assert failed(us.check_policy(Tokens(), batch=batch)) == {}
    batch["observation.force"] = torch.randn(6, 4)
    batch["observation.force_is_pad"] = batch[PAD]
    line = failed(us.check_policy(Tokens(), batch=batch))["padding"]
    assert "observation.force_is_pad" in line
