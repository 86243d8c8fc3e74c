"""The examples, and the one of the README: right as they are, red with whatever breaks an exchange."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
BUILD = Path(os.environ.get("FAST_ULYSSES_BUILD_DIR", ROOT / "build/release"))

Need = Callable[[str, bool, str], None]


def run(command: list[str | Path], fault: str = "", timeout: float = 120.0) -> tuple[int, str]:
    """The exit code and all output; whatever is left at the deadline is ended with its children."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "FAST_ULYSSES_TEST_FAULT": fault}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"not done within {timeout:g} s:\n{output}")
    return process.returncode, output


def torchrun(script: Path, ranks: int = 2, fault: str = "") -> tuple[int, str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run([sys.executable, *launcher, script], fault)


def test_the_example_of_the_readme_runs_as_it_is(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    script = tmp_path / "example.py"
    script.write_text(blocks[0])
    code, output = torchrun(script)
    assert code == 0, output
    for rank in range(2):
        assert f"sp0-1/{rank}of2#0 shm {{'calls': 2, " in output, output


@pytest.mark.parametrize("name", ["minimal", "uneven", "diffusers_wan"])
def test_a_python_example_is_right(name: str) -> None:
    if name == "diffusers_wan":
        pytest.importorskip("diffusers", reason="needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'")
    code, output = torchrun(EXAMPLES / f"{name}.py")
    assert code == 0, output
    for rank in range(2):
        assert f"sp0-1/{rank}of2#0: " in output, output


@pytest.mark.parametrize("name", ["minimal", "uneven"])
def test_a_python_example_finds_a_wrong_bit(name: str) -> None:
    code, output = torchrun(EXAMPLES / f"{name}.py", fault="flip-bit")
    assert code == 1, output
    assert "WRONG" in output


SWAPPED_HEADS = """
import runpy, torch
from fast_ulysses.integrations.diffusers import GroupExchange

real = GroupExchange.gather_heads
GroupExchange.gather_heads = lambda self, out, heads, tokens: real(self, out, heads, tokens).roll(1, 2)
runpy.run_path({example!r}, run_name="__main__")
"""


def test_the_diffusers_example_finds_swapped_heads(tmp_path: Path) -> None:
    pytest.importorskip("diffusers", reason="needs diffusers: pip install 'fast-ulysses-nvshmem[demo]'")
    script = tmp_path / "swapped.py"
    script.write_text(SWAPPED_HEADS.format(example=str(EXAMPLES / "diffusers_wan.py")))
    code, output = torchrun(script)
    assert code == 1, output
    assert "WRONG: the output differs" in output


def built(name: str, need: Need) -> Path:
    program = BUILD / "examples" / f"example_{name}"
    need("cpp-examples", program.exists(), f"{program} is not built (-DFAST_ULYSSES_EXAMPLES=ON)")
    return program


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_cpp_example_is_right(ranks: int, need: Need) -> None:
    code, output = run([built("cpp_minimal", need), str(ranks)])
    assert code == 0, output
    assert output.count(": right\n") == ranks


def test_the_cpp_example_finds_a_wrong_bit(need: Need) -> None:
    code, output = run([built("cpp_minimal", need)], fault="flip-bit")
    assert code == 1, output
    assert output.count(": WRONG\n") == 2


def test_the_transport_of_the_documents_works(need: Need) -> None:
    code, output = run([built("custom_transport", need)])
    assert code == 0, output
    assert output.count("exchange right, failure told to all: yes\n") == 3


def test_every_example_is_listed() -> None:
    listed = (ROOT / "docs/README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".cc")}
    assert names == set(re.findall(r"\]\(\.\./examples/([^)]+)\)", listed))
