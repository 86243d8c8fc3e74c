"""Says what the built distributions may hold, and fails when one holds something else.

python tools/check_wheel.py DIR: DIR has one wheel and one source distribution.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

NEEDED_LIBRARIES = {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"}
IN_WHEEL = ["__init__.py", "py.typed", "_C.pyi", "cli/__main__.py"]
IN_SOURCE = ["CMakeLists.txt", "Makefile", "src/bindings.cc", "include/fast_ulysses/version.h", "LICENSE"]


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"expected one {pattern} in {folder}, found {[path.name for path in found]}")
    return found[0]


def module_problems(module: Path) -> list[str]:
    """What the extension module links and exports beyond what it should."""
    dynamic = subprocess.run(["readelf", "-dW", module], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
    problems = [f"links {name}" for name in sorted(needed - NEEDED_LIBRARIES)]
    if "RPATH" in dynamic or "RUNPATH" in dynamic:
        problems.append("has a run path")
    symbols = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True).stdout
    exported = [line.split()[-1] for line in symbols.splitlines()]
    return problems + [f"exports {name}" for name in exported if name != "PyInit__C"]


def wheel_problems(wheel: Path) -> list[str]:
    problems = []
    if not re.fullmatch(r"fast_ulysses_nvshmem-[^-]+-cp3\d+-cp3\d+-linux_x86_64\.whl", wheel.name):
        problems.append("unexpected name")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        problems += [f"lacks {name}" for name in IN_WHEEL if f"fast_ulysses/{name}" not in names]
        problems += [
            f"holds {name}"
            for name in names
            if not re.match(r"fast_ulysses/|fast_ulysses_nvshmem-[^/]+\.dist-info/", name)
            or name.endswith((".cc", ".h"))
        ]
        if not any(name.endswith("/LICENSE") for name in names):
            problems.append("lacks LICENSE")
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
        problems += [
            f"requires {line}"
            for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)
            if "extra ==" not in line
        ]
        modules = [name for name in names if re.fullmatch(r"fast_ulysses/_C\.[^/]*so", name)]
        if len(modules) != 1:
            problems.append(f"has {len(modules)} extension modules")
        for name in modules:
            problems += [f"{name} {text}" for text in module_problems(Path(archive.extract(name, folder)))]
    return problems


def source_problems(source: Path) -> list[str]:
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    problems = [f"lacks {name}" for name in IN_SOURCE if name not in names]
    return problems + [f"holds {name}" for name in names if name.endswith((".so", ".pyc", ".o"))]


def main() -> int:
    folder = Path(sys.argv[1])
    failed = 0
    for path, problems in (
        (wheel := only(folder, "*.whl"), wheel_problems(wheel)),
        (source := only(folder, "*.tar.gz"), source_problems(source)),
    ):
        failed += bool(problems)
        print(f"{path.name}: {'; '.join(problems) or 'as it should be'} ({path.stat().st_size / 1024:.0f} KiB)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
