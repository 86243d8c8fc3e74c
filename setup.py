"""Drives CMake for the extension module; everything else is in pyproject.toml and CMakeLists.txt.

A normal build goes to setuptools' temporary folder. An editable one shares build/release with `make build`, where the
module lies beside its sources, so the same files are compiled once.

FAST_ULYSSES_CMAKE_ARGS adds arguments to the configure step.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()


def version() -> str:
    header = (ROOT / "include/fast_ulysses/version.h").read_text(encoding="utf-8")
    found = re.search(r'#define FAST_ULYSSES_VERSION "([^"]+)"', header)
    if found is None:
        raise RuntimeError("include/fast_ulysses/version.h has no FAST_ULYSSES_VERSION")
    return found.group(1)


class CMakeBuild(build_ext):
    """Builds and places the one extension, fast_ulysses._C."""

    def run(self) -> None:
        extra = ["-DCMAKE_BUILD_TYPE=Release", *shlex.split(os.environ.get("FAST_ULYSSES_CMAKE_ARGS", ""))]
        if self.inplace or self.editable_mode:
            build_dir = ROOT / "build/release"
            self.cmake_build(build_dir, ["-DFAST_ULYSSES_INPLACE=ON", *extra])
        else:
            build_dir = Path(self.build_temp).resolve() / "cmake"
            self.cmake_build(build_dir, extra)
            prefix = str(Path(self.build_lib).resolve())
            cmake("--install", str(build_dir), "--component", "python", "--prefix", prefix, "--strip")

    def cmake_build(self, build_dir: Path, options: list[str]) -> None:
        python = [f"-DPython_EXECUTABLE={sys.executable}", "-DFAST_ULYSSES_PYTHON=ON"]
        cmake("-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja", *python, *options)
        cmake("--build", str(build_dir), "--target", "_C")


def cmake(*arguments: str) -> None:
    command = ["cmake", *arguments]
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, check=True)


setup(
    version=version(),
    ext_modules=[Extension("fast_ulysses._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
