"""The shared library: where it is, what it is called with, and why it is not there.

`Problem` mirrors the struct of that name in problem.hpp, which documents the fields. ctypes
releases the interpreter lock during a call. HEADSCAPE_LIBRARY is the path of a different build,
such as one with sanitizers; HEADSCAPE_NATIVE (avx2, portable) limits the instruction set.
"""

import ctypes
import functools
import os
from pathlib import Path
from struct import Struct

import torch
from torch import Tensor


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


FIELDS = [
    *_fields(ctypes.c_int64, "batch heads queries keys head_dim key_heads value_dim type"),
    *_fields(ctypes.c_int64, "causal window threads parts"),
    *_fields(ctypes.c_double, "scale softcap"),
    *_fields(ctypes.c_void_p, "temperature sink"),
    *_fields(ctypes.c_int64, "sticks takes_own keeps_rest"),
    *_fields(ctypes.c_void_p, "q k v q_at k_at q_group k_group"),
    *_fields(ctypes.c_int64, "q_stride k_stride q_batch q_head q_row by_token"),
    *_fields(ctypes.c_void_p, "out lse"),
    *_fields(ctypes.c_int64, "kind"),
    *_fields(ctypes.c_void_p, "table"),
    *_fields(ctypes.c_int64, "table_low table_length"),
    *_fields(ctypes.c_void_p, "weight row col"),
    *_fields(ctypes.c_int64, "weight_stride row_stride col_stride pieces"),
    *_fields(ctypes.c_void_p, "knots slopes offsets r basis u key_basis key_turned constant"),
    *_fields(ctypes.c_void_p, "source"),
    *_fields(ctypes.c_int64, "rank key_rank r_stride u_stride constant_stride"),
    *_fields(ctypes.c_int64, "basis_stride key_basis_stride key_turned_stride"),
    *_fields(ctypes.c_int64, "basis_low basis_rows turned_length"),
    *_fields(ctypes.c_int64, "hidden taps adds_bias released"),
    *_fields(ctypes.c_void_p, "in_weight in_bias out_weight out_bias in_back out_back fold"),
    *_fields(ctypes.c_int64, "fold_low fold_length"),
    *_fields(ctypes.c_void_p, "d_out d_q d_k d_v d_temperature d_table d_weight d_row d_col"),
    *_fields(ctypes.c_void_p, "d_slopes d_offsets d_r d_basis d_u d_key_basis d_constant"),
    *_fields(ctypes.c_void_p, "d_fold d_in_weight d_in_bias d_out_weight d_out_bias"),
]


DECODE = Struct("@9q2d3P6qP2q2P4q3P")
"""The struct `Decode`, packed: setting ctypes fields is too slow for a call per layer and token."""
CELLS_FIELDS = [
    *_fields(ctypes.c_int64, "cells additive"),
    *_fields(ctypes.c_void_p, "edges raw_q raw_k sum least greatest"),
]


class Problem(ctypes.Structure):
    """One attention call, as plain data."""

    _fields_ = FIELDS


def library_path() -> Path:
    """Where the library is looked for: setup.py gives it this name."""
    return Path(os.environ.get("HEADSCAPE_LIBRARY") or Path(__file__).with_name("kernels.so"))


class Cells(ctypes.Structure):
    """A grid that scores are reduced to, as plain data."""

    _fields_ = CELLS_FIELDS


@functools.cache
def load() -> ctypes.CDLL | str:
    """Return the library, or the reason why it cannot be loaded."""
    path = library_path()
    if not path.exists():
        return "the native kernels were not built; install headscape where a C++ compiler is"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native kernels cannot be loaded: {error}"
    library.headscape_instructions.restype = ctypes.c_char_p
    sizes = {
        "problem": ctypes.sizeof(Problem),
        "cells": ctypes.sizeof(Cells),
        "decode": DECODE.size,
    }
    for name, wanted in sizes.items():
        size = getattr(library, f"headscape_{name}_size", None)
        if size is not None:
            size.restype = ctypes.c_int64
        if size is None or size() != wanted:
            return "the native kernels were built for a different version; install headscape again"
    for name in ("headscape_forward", "headscape_backward"):
        getattr(library, name).argtypes = [ctypes.POINTER(Problem)]
    library.headscape_decode.argtypes = [ctypes.c_char_p]
    library.headscape_cells.argtypes = [ctypes.POINTER(Problem), ctypes.POINTER(Cells)]
    return library


def instructions() -> str:
    """The instruction set in use: avx512, avx2 or portable."""
    library = load()
    assert not isinstance(library, str)
    return str(library.headscape_instructions().decode())


Fields = dict[str, Tensor | float | None]
"""Fields of a struct by name."""


def call(name: str, fields: Fields, beside: Cells | None = None) -> None:
    """Run `name` on a problem; tensors are handed over by address."""
    library = load()
    assert not isinstance(library, str)
    problem = Problem(threads=torch.get_num_threads())
    fill(problem, fields)
    given = [problem] if beside is None else [problem, beside]
    if getattr(library, f"headscape_{name}")(*map(ctypes.byref, given)):
        raise MemoryError("no memory for the scratch tiles of native attention")


def fill(struct: ctypes.Structure, fields: Fields) -> None:
    """Set the fields of a struct, tensors by address; None leaves a field at 0."""
    for field, value in fields.items():
        if isinstance(value, Tensor):
            assert value.is_contiguous(), field
            setattr(struct, field, value.data_ptr())
        elif value is not None:
            setattr(struct, field, value)
