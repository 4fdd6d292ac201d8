"""LeRobot's SmolVLA as a `Policy`: tokens, random numbers and per-sample losses are ours, the
network is theirs.
"""

import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy import (
    Draws,
    Loss,
    LossTerm,
    RandomSpec,
    Use,
    WeightFiles,
    WeightsError,
    spread_times,
    valid_elements,
)
from understudy_base import ACTION, Batch, ConfigError, Record, optional_imports
from understudy_zoo.lerobot.adapter import LerobotPolicy, build_errors
from understudy_zoo.lerobot.settings import LerobotSmolvlaConfig, check_smolvla_start

TOKENS = "language_tokens"
TOKENS_MASK = "language_tokens_mask"
"""Keys of a prepared batch: tokens of the instructions, int64 [B, L], and bool [B, L], False where
they are padding.
"""
HEAD, EMBEDDING = (
    f"model.vlm_with_expert.vlm.{part}.weight"
    for part in ("lm_head", "model.text_model.embed_tokens")
)
LEAST_TIME = 0.001
"""Least flow time of a training."""
_TOKENIZING = threading.Lock()  # a tokenizer keeps the padding of its last call


def resize_image(image: np.ndarray, out: np.ndarray) -> None:
    """Resize an image uint8 [3, H, W] into `out` uint8 [3, height, width], padded left and on top
    with black.
    """
    height, width = out.shape[-2:]
    ratio = max(image.shape[-1] / width, image.shape[-2] / height)
    size = (int(image.shape[-2] / ratio), int(image.shape[-1] / ratio))
    pixels = torch.from_numpy(np.ascontiguousarray(image))[None].float()
    small = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)[0]
    out[:] = 0
    out[:, height - size[0] :, width - size[1] :] = (
        small.round().clamp(0, 255).to(torch.uint8).numpy()
    )


class LerobotSmolvla(LerobotPolicy):
    """LeRobot's SmolVLA. `LerobotSmolvla(config, normalization)` has fresh weights from torch's
    generator.

    `model` is the network, with LeRobot's names of parameters, in float32. The draws of a batch
    decide noise and flow time. Settings freeze the parts that LeRobot's freeze.
    """

    tied_weights: ClassVar[Mapping[str, str]] = {HEAD: EMBEDDING}
    config: LerobotSmolvlaConfig
    check_start = staticmethod(check_smolvla_start)
    resize_image = staticmethod(resize_image)

    def __init__(self, config: LerobotSmolvlaConfig, normalization: Record) -> None:
        """Build the network; arguments and errors: see `LerobotPolicy`.

        Raises:
            ConfigError: the files of `vlm_model_name` cannot be read.
        """
        super().__init__(config, normalization)
        with optional_imports():
            import num2words  # noqa: F401  # without it LeRobot raises another error
            import transformers  # noqa: F401
            from lerobot.policies.common.vla_utils import resize_with_pad
            from lerobot.policies.smolvla.modeling_smolvla import VLAFlowMatching

        try:
            with redirect_stdout(sys.stderr), build_errors():  # LeRobot prints
                self.model = VLAFlowMatching(config.theirs).float()
        except OSError as error:  # of transformers, also without a network
            reason = (str(error).splitlines() or [""])[0]
            raise ConfigError(
                f"policy.config: vlm_model_name: {config.theirs.vlm_model_name}: config.json, "
                f"tokenizer and processor of the vision-language model cannot be read: {reason}: "
                "fetch the repository once while the hub can be reached, or name a folder with "
                "these files"
            ) from error
        # constants, which copies of the policy need
        for name in ("global_image_start_token", "image_end_token"):
            values = getattr(self.model, name)
            delattr(self.model, name)
            self.model.register_buffer(name, values, persistent=False)
        vlm = self.model.vlm_with_expert.vlm
        if vlm.lm_head.weight is vlm.get_input_embeddings().weight:  # no loss reaches the head
            vlm.lm_head.weight = nn.Parameter(
                vlm.lm_head.weight.detach().clone(), requires_grad=False
            )
        self._resize = resize_with_pad

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Name of the loss term: `flow`."""
        return (LossTerm.FLOW,)

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Noise and flow time of a sample, with LeRobot's distribution; to act the noise."""
        shape = (self.config.chunk, self.config.theirs.max_action_dim)
        if use == "act":
            return {"noise": RandomSpec("normal", shape)}
        return {
            "flow noise": RandomSpec("normal", shape),
            "flow time": RandomSpec("uniform", (1,), partial(spread_times, least=LEAST_TIME)),
        }

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Tokenize the instructions, each with a line break behind it as in LeRobot."""
        encoded = self._tokenize(self.prompts_of(batch), self.config.theirs.pad_language_to)
        return {
            **batch,
            TOKENS: encoded["input_ids"],
            TOKENS_MASK: encoded["attention_mask"].bool(),
        }

    def prompt_room(self, prompts: Sequence[str]) -> tuple[int, int, str]:
        """Tokens, with the line break."""
        lengths = self._tokenize(prompts, "longest", truncation=False)["attention_mask"].sum(1)
        return int(lengths.max()), self.config.theirs.tokenizer_max_length, "tokenizer_max_length"

    def start_weights(self) -> WeightFiles | None:
        """Open the tensors of `config.weights`; see `Policy.start_weights`.

        Raises:
            WeightsError: a tensor is missing, unexpected or of another shape; names each.
        """
        if not self.config.weights:
            return None
        files = WeightFiles(self.config.weights, floats_only=False)
        needed = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        missing = [name for name in needed if name not in files.shapes]
        if HEAD in missing and EMBEDDING in files.shapes:
            missing.remove(HEAD)
        extra = {key: "" for key in files.shapes if key not in needed}
        shapes = {
            key: (shape, needed[key])
            for key, shape in files.shapes.items()
            if needed.get(key, shape) != shape
        }
        if missing or extra or shapes:
            raise WeightsError(self.config.weights, missing, extra, shapes)
        return files

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample, int64 [B]."""
        dim_is_pad = self.normalizer.dim_is_pad(ACTION, batch)
        return {
            LossTerm.FLOW: valid_elements(
                self.value_of(batch, f"{ACTION}_is_pad"), 1, self.config.action_dim, dim_is_pad
            )
        }

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Squared error of the velocity over the robot's own dimensions and unpadded slots; see
        `Policy.losses`.

        Args:
            batch: see `Policy`.
            draws: "flow noise" [B, T, max_action_dim], "flow time" [B, 1].
            terms: see `Policy.losses`.
            detail: see `Policy.losses`.
        """
        if terms is not None and LossTerm.FLOW not in terms:
            return {}
        config = self.config
        actions = self.actions(batch)
        self.check_shape(ACTION, actions, (None, config.chunk, config.action_dim))
        targets = F.pad(actions, (0, config.theirs.max_action_dim - config.action_dim))
        squares = self.model(
            *self._inputs(batch), targets, draws["flow noise"], draws["flow time"][:, 0]
        )
        squares = squares[:, None, :, : config.action_dim].float()  # [B, 1, T, A]
        is_pad = self.value_of(batch, f"{ACTION}_is_pad")
        dim_is_pad = self.normalizer.dim_is_pad(ACTION, batch)
        return {LossTerm.FLOW: Loss.of_errors(squares, is_pad, dim_is_pad, detail)}

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Sample actions, float32 [B, T, A] in the robot's units, in `num_steps` of the config, not
        `steps`.

        All steps share one pass over images, instruction and state.

        Args:
            batch: see `Policy`.
            draws: "noise" [B, T, max_action_dim].
            steps: has no effect.
            mode: "policy".
        """
        actions = self.model.sample_actions(*self._inputs(batch), noise=draws["noise"])
        return self.normalizer.robot_actions(actions[..., : self.config.action_dim].float(), batch)

    def _inputs(self, batch: Batch) -> tuple[Any, ...]:
        """Images and their masks, tokens and their mask, and the state, as the network takes
        them.
        """
        size = self.config.theirs.resize_imgs_with_padding
        images = []
        masks = []
        for camera in self.config.cameras:
            pixels = self.pixels(batch, camera)
            if size is not None:
                pixels = self._resize(pixels, size[1], size[0], pad_value=0)
            missing = batch.get(f"{camera}_is_missing")
            images.append(pixels * 2 - 1)
            if missing is None:
                masks.append(torch.ones_like(pixels[:, 0, 0, 0], dtype=torch.bool))
            else:
                masks.append(~missing)
        if TOKENS not in batch:
            device = images[0].device
            tokenized = self.preprocess(dict(batch))
            batch = {**batch, **{key: tokenized[key].to(device) for key in (TOKENS, TOKENS_MASK)}}
        state = self.normalizer.present_states(batch)
        padded = F.pad(state, (0, self.config.theirs.max_state_dim - self.config.state_dim))
        return images, masks, batch[TOKENS], batch[TOKENS_MASK], padded

    def _tokenize(self, prompts: Sequence[str], padding: str, truncation: bool = True) -> Any:
        texts = [text.removesuffix("\n") + "\n" for text in prompts]
        most = {"max_length": self.config.theirs.tokenizer_max_length} if truncation else {}
        with _TOKENIZING:
            return self.model.vlm_with_expert.processor.tokenizer(
                texts,
                truncation=truncation,
                padding=padding,
                padding_side="right",
                return_tensors="pt",
                **most,
            )
