"""Attention with any positional bias: fused paths, tested against the definition (call/).

assemble.py    makes an encoding and q, k, v into a call, and checks it
attend.py      KERNELS, the table of paths; which one runs, and how one joins
native/        the C++ kernels; torch_*.py, sdpa.py, flex.py, decode.py the other paths
"""
