"""What speech models read: frames of features, or a waveform that convolutions turn into frames.

Attention sees frames. wav2vec2-BERT and SeamlessM4T are given them; wav2vec2-Conformer and WavLM
are given samples, which a stack of convolutions without padding turns into frames. SEW-D then takes
the mean of `squeeze_factor` frames at a time.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor, nn

from headscape.errors import InputError
from headscape.models.model import Spec
from headscape.models.transformers.published_model import LENGTH, PublishedModel

FRAMES = 128
"""Frames of noise if no length is given."""


@dataclass(frozen=True, kw_only=True)
class SoundInput:
    """The input of a speech model: `features` numbers per frame, or samples for convolutions."""

    features: int | None = None
    """None if it reads a waveform."""
    convolutions: tuple[tuple[int, int], ...] = ()
    """Kernel and stride of each, in order."""

    def frames(self, count: int) -> int:
        """Return the number of frames that attention sees, for a number of frames or samples."""
        for kernel, stride in self.convolutions:
            count = (count - kernel) // stride + 1
        return max(count, 0)

    def needed(self, frames: int) -> int:
        """Return the smallest number of frames or samples that gives `frames` frames."""
        for kernel, stride in reversed(self.convolutions):
            frames = (frames - 1) * stride + kernel
        return frames

    def noise(self, frames: int, seed: int) -> Float32[np.ndarray, "t ..."]:
        """Return normal noise of `frames` frames; models expect sound of mean 0 and variance 1."""
        size = (self.needed(frames),) if self.features is None else (frames, self.features)
        return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)

    def check(self, given: object, length: int | None) -> Float32[np.ndarray, "t ..."]:
        """Return a user's sound, cut to `length` frames."""
        unit = "samples" if self.features is None else "frames"
        wanted = f"{unit} [n]" if self.features is None else f"{unit} [t, {self.features}]"
        try:
            found = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
            sound = found.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"sound must be an array of {wanted}, got {type(given).__name__}."
            ) from error
        if sound.ndim != (1 if self.features is None else 2) or (
            self.features is not None and sound.shape[1] != self.features
        ):
            raise InputError(f"sound must be an array of {wanted}, got shape {sound.shape}.")
        if bad := int((~np.isfinite(sound)).sum()):
            raise InputError(f"sound contains {bad} values that are NaN or infinite: remove them.")
        have, least = self.frames(len(sound)), length or 1
        if have < least:
            raise InputError(
                f"the sound has {have} frames, fewer than the {least} needed: give at least "
                f"{self.needed(least)} {unit}."
            )
        return sound if length is None else sound[: self.needed(length)]

    def choose(
        self, given: object, length: int | None, seed: int
    ) -> tuple[Float32[np.ndarray, "t ..."], int]:
        """Return a user's sound, or noise where `given` is None, and its number of frames."""
        if given is None:
            return self.noise(length or FRAMES, seed), length or FRAMES
        sound = self.check(given, length)
        return sound, self.frames(len(sound))

    def real_frames(self, real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b t"]:
        """Return which frames are not padding; a padded waveform is padded on the right."""
        if not self.convolutions:
            return real
        if (real[:, 1:] & ~real[:, :-1]).any():
            raise InputError(
                "a waveform must be padded on the right, got padding before samples: move it to "
                "the end."
            )
        counts = torch.tensor([self.frames(int(count)) for count in real.sum(dim=1)])
        every = torch.arange(self.frames(real.shape[1]))
        return (every < counts[:, None]).to(real.device)


def sound_input(body: nn.Module, config: Any, first: str) -> SoundInput:
    """Return how a model whose input is called `first` reads sound; any other model is refused."""
    features = getattr(config, "feature_projection_input_dim", None)
    kernels, strides = (getattr(config, name, None) for name in ("conv_kernel", "conv_stride"))
    if first == "input_features" and features is not None:
        return SoundInput(features=features)
    if first == "input_values" and kernels is not None and strides is not None:
        pool = getattr(config, "squeeze_factor", 1)
        return SoundInput(convolutions=(*zip(kernels, strides, strict=True), (pool, pool)))
    raise InputError(
        f"{type(body).__name__} reads {first}, which Headscape cannot read: use a model that reads "
        f"tokens, or a speech model built like wav2vec2 or SeamlessM4T."
    )


class SpeechModel(PublishedModel):
    """A speech model of transformers: it can be captured."""

    def __init__(self, model: Any, name: str, reads: SoundInput) -> None:
        self.reads = reads
        super().__init__(model, name, None)
        frames = LENGTH if self._reading is None else self._reading.calls[0].q.shape[2]
        if frames != LENGTH:
            raise InputError(
                f"{name} attends to {frames} frames where its config says {LENGTH}: a model that "
                f"shortens sound in a different way cannot be read."
            )

    def _check_input(self) -> Tensor:
        return self._batch(torch.from_numpy(self.reads.noise(LENGTH, 0))[None])

    @cached_property
    def spec(self) -> Spec:
        """Return the spec; vocabulary is 0 and train_length None, since it reads no tokens."""
        return replace(super().spec, vocabulary=0, train_length=None)

    def sound(
        self, given: object, *, length: int | None, seed: int
    ) -> tuple[Float32[np.ndarray, "t ..."], int]:
        """Return what it reads and the number of frames; noise from a seed if `given` is None."""
        return self.reads.choose(given, length, seed)

    def _batch(self, tokens: Float[Tensor, "b t ..."]) -> Float[Tensor, "b t ..."]:
        return tokens.to(self.model.device, self.model.dtype)

    def _real_positions(self, real: Bool[Tensor, "b n"]) -> Bool[Tensor, "b t"]:
        return self.reads.real_frames(real)
