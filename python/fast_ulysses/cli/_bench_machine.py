"""What the figures were measured on."""

from __future__ import annotations

import contextlib
import datetime
import platform
import subprocess
from pathlib import Path
from typing import Any

from ._ranks import cores

__all__ = ["available_bytes", "machine"]

_KEPT_FREE = 0.05  # of the memory, for everybody else


def machine() -> dict[str, Any]:
    import torch

    import fast_ulysses

    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fast_ulysses": fast_ulysses.__version__,
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    """Of the working tree that this file is tracked in, if it is in one; "-dirty" where that was changed."""
    own = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(own.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", own.parents[1].joinpath("__init__.py").as_posix())
        return git("describe", "--always", "--dirty", "--exclude", "*")
    except (OSError, subprocess.SubprocessError):
        return None


def available_bytes() -> int:
    """Memory that can be had without swapping, also under a limit on this control group."""
    found = []
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        own = group / Path("/proc/self/cgroup").read_text().splitlines()[-1].split("::/")[-1]
        for folder in {own, group}:
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / "memory.max").read_text())
                found.append(limit - int((folder / "memory.current").read_text()))
    return int(min(found, default=0) * (1 - _KEPT_FREE))
