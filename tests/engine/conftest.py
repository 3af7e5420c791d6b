"""Engines that several tests look at."""

import pytest
from engine_runs import TwoRanks, run_two_ranks


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> TwoRanks:
    return run_two_ranks(tmp_path_factory.mktemp("vpp") / "trace")
