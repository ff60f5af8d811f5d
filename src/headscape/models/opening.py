"""How a published model is opened: which version, where it runs, in which dtype."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headscape.errors import InputError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "auto")


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Options of `load` for a published model."""

    revision: str | None = None
    """Branch, tag or commit of a model on the Hugging Face Hub. [default: main]"""
    device: str | None = None
    """Where a published model runs, such as cpu, cuda or cuda:1. [default: cpu]"""
    dtype: str | None = None
    """float32, bfloat16, float16, or auto for that of the stored weights. [default: float32]"""
    device_map: str | dict[str, Any] | None = None
    """auto: spread a published model over all GPUs, memory and disk (needs accelerate)."""
    offload: bool = False
    """Leave the weights on disk and read them block by block in every pass: for a model that is
    larger than memory."""

    def __post_init__(self) -> None:
        name = str(self.dtype).removeprefix("torch.")
        if self.dtype is not None and name not in DTYPES:
            raise InputError(f"unknown dtype {name!r}: choose {', '.join(DTYPES)}.")
        if self.device_map is not None and (self.device is not None or self.offload):
            other = "offload" if self.offload else f"device {self.device!r}"
            raise InputError(f"give device_map or {other}, not both.")

    def torch_dtype(self, *, packed: bool) -> "torch.dtype | str":
        """Return what `from_pretrained` takes; weights that are `packed` keep their own."""
        import torch

        name = str(self.dtype or ("auto" if packed else "float32")).removeprefix("torch.")
        found: torch.dtype | str = name if name == "auto" else getattr(torch, name)
        return found

    def checked_device(self) -> str:
        """Return the device; raise InputError if torch cannot use it."""
        import torch

        name = self.device or "cpu"
        try:
            usable = not torch.empty(0, device=name).is_meta
        # torch raises one of these for an unknown name, or a device it was not built for.
        except (RuntimeError, AssertionError, NotImplementedError):
            usable = False
        if not usable:
            raise InputError(
                f"torch cannot run on the device {name!r} here: choose a different one, like cpu."
            )
        return name

    def refuse(self, source: str) -> None:
        """Raise InputError if an option was given for a model that is opened without any."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise InputError(
                    f"{field.name} is for published models (hf:), and {source} is not opened as "
                    f"one: leave it out."
                )
