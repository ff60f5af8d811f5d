"""Builds the native attention kernels with the package; everything else is in pyproject.toml.

One shared library without Python or torch headers, loaded with ctypes. It does not depend on the
Python version, so a wheel is tagged py3-none-PLATFORM and serves every Python of that platform. The
kernels are compiled once per instruction set and chosen when the library is loaded, so a wheel runs
on older processors too. Without a C++ compiler the wheel is py3-none-any, without the library, and
`headscape doctor` says so.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = "src/headscape/kernels/native"
COMMON = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fopenmp",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wno-psabi",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]
X86 = platform.machine().lower() in {"x86_64", "amd64"}
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
FLAGS = {
    "kernel_avx512.cpp": AVX512 if X86 else [],  # the slowest to compile starts first
    "kernel_avx2.cpp": AVX2 if X86 else [],
    "kernel_portable.cpp": [],
    "api.cpp": ["-fvisibility=default"],
}
LIBRARY = "headscape.kernels.native.kernels"


class BuildKernels(build_ext):
    """Compiles every source with its own instruction set, all at once."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library without Python's version: ops.py loads it by this name."""
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        extra = os.environ.get("HEADSCAPE_CXXFLAGS", "").split()
        strip = [] if "-g" in extra else ["-s"]

        def compiled(name: str) -> list[str]:
            return self.compiler.compile(
                [f"{NATIVE}/{name}"],
                output_dir=self.build_temp,
                extra_postargs=[*COMMON, *FLAGS[name], *extra],
                depends=ext.depends,
            )

        Path(self.build_temp, NATIVE).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [path for paths in pool.map(compiled, FLAGS) for path in paths]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a process that has the old library loaded keeps its file.
        fresh = target.with_name(f"{target.name}.{os.getpid()}")
        self.compiler.link_shared_object(
            objects, str(fresh), extra_postargs=["-fopenmp", *strip, *extra], target_lang="c++"
        )
        fresh.replace(target)


class TagByLibrary(bdist_wheel):
    """Tags the wheel by what was built: for this platform, or for any if there is no library."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag, which names no Python version."""
        built = Path(self.bdist_dir, f"{LIBRARY.replace('.', '/')}.so").exists()
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": TagByLibrary},
    ext_modules=[
        Extension(
            LIBRARY,
            sources=[f"{NATIVE}/{name}" for name in FLAGS],
            depends=sorted(str(path) for path in Path(NATIVE).glob("*.hpp")),
            optional=True,
        )
    ],
)
