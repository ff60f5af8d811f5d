"""A published model that reads sound instead of tokens: wav2vec2's Conformers, WavLM and others."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor

from headscape.errors import InputError
from headscape.models.model import Spec
from headscape.models.transformers.published_model import PublishedModel
from headscape.models.transformers.self_check import LENGTH
from headscape.models.transformers.sound_input import SoundInput


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
