"""Fixtures: ranks as processes, the two transports, and skips that are decided once and can be forbidden."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from launcher import Pool, Ranks, Report


@pytest.fixture(params=["shm", "torch"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def _shared_pool() -> Iterator[Pool]:
    shared = Pool()
    yield shared
    shared.close()


@pytest.fixture
def pool(_shared_pool: Pool) -> Pool:
    """Ranks that are kept for many tests: `pool.run(function, ranks, *args, timeout=60)` returns their results."""
    return _shared_pool


@pytest.fixture
def start() -> Iterator[Callable[..., Ranks]]:
    """Fresh processes under the test's own control; whatever is left of them is killed at the end."""
    started: list[Ranks] = []

    def start_ranks(count: int, **options: Any) -> Ranks:
        started.append(Ranks(count, **options))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.close()


@pytest.fixture
def launch(start: Callable[..., Ranks]) -> Callable[..., list[Report]]:
    """`launch(function, ranks, *args, timeout=60)`: fresh processes run `function(context, *args)` and exit.

    Returns their reports. A rank that raises, or exits with another code than 0, fails the test with its traceback,
    unless check=False.
    """

    def launch_function(
        function: Callable[..., Any], count: int, *args: Any, timeout: float = 60.0, check: bool = True, **options: Any
    ) -> list[Report]:
        ranks = start(count, **options)
        ranks.submit(function, *args)
        reports = ranks.gather(timeout, check=check)
        codes = ranks.finish()
        for report, code in zip(reports, codes, strict=True):
            report.exit_code = code
            report.log = ranks.log(report.rank)
            assert not check or code == 0, str(report)
        return reports

    return launch_function


@pytest.fixture
def need() -> Callable[[str, bool, str], None]:
    """`need(feature, available, reason)`: skips with the reason; fails if FAST_ULYSSES_TEST_REQUIRE names it."""

    def check(feature: str, available: bool, reason: str) -> None:
        if available:
            return
        if feature in os.environ.get("FAST_ULYSSES_TEST_REQUIRE", "").split(","):
            pytest.fail(f"{feature} is required by FAST_ULYSSES_TEST_REQUIRE, but {reason}")
        pytest.skip(f"{feature}: {reason}")

    return check
