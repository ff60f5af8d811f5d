"""Builds the native attention kernels with the package; everything else is in pyproject.toml.

One shared library without Python or torch headers, loaded with ctypes. The kernels are compiled
once per instruction set and chosen when the library is loaded, so a wheel built here runs on an
older machine. The extension is optional: without a C++ compiler the package installs without it
and `headscape doctor` says so.
"""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = "src/headscape/attention/native"
COMMON = [
    "-std=c++17",
    "-O3",
    "-fopenmp",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
X86 = platform.machine().lower() in {"x86_64", "amd64"}
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
FLAGS = {
    "api.cpp": ["-fvisibility=default"],
    "kernel_portable.cpp": [],
    "kernel_avx2.cpp": AVX2 if X86 else [],
    "kernel_avx512.cpp": [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
    if X86
    else [],
}


class PerFileFlags(build_ext):
    """Compiles every source with its own instruction set.

    The library is written under a name of its own and renamed: where a process has the old one
    loaded, that file must not change under it.
    """

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        extra = os.environ.get("HEADSCAPE_CXXFLAGS", "").split()
        objects = []
        for name, flags in FLAGS.items():
            objects += self.compiler.compile(
                [f"{NATIVE}/{name}"],
                output_dir=self.build_temp,
                extra_postargs=[*COMMON, *flags, *extra],
                depends=ext.depends,
            )
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        self.compiler.link_shared_object(
            objects, str(fresh), extra_postargs=["-fopenmp", *extra], target_lang="c++"
        )
        fresh.replace(target)


headers = [
    "simd", "problem", "gemm", "bias", "bend", "half", "shear", "attention", "convolution", "mixing",
    "decode", "cells", "kernel",
]  # fmt: skip
setup(
    cmdclass={"build_ext": PerFileFlags},
    ext_modules=[
        Extension(
            "headscape.attention.native.kernels",
            sources=[f"{NATIVE}/{name}" for name in FLAGS],
            depends=[f"{NATIVE}/{name}.hpp" for name in headers],
            optional=True,
        )
    ],
)
