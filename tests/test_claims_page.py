"""The page of claims says what the files say, and says so where there is none."""

import json
from pathlib import Path
from typing import Any

import claims_page
import pytest
import results_page
from claims_page import CLAIMS, NOT_MEASURED, row
from paper_machine import PaperMachine

from vllm_vpp.bench.claims import Verdict
from vllm_vpp.bench.stats import paired_ratio
from vllm_vpp.sim.paper import K, calibrate_on


@pytest.fixture(scope="module")
def machine() -> PaperMachine:
    return PaperMachine(calibrate_on(24 * K), 24 * K)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results_page, "ROOT", tmp_path)
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


def write(folder: Path, suite: str, seconds: dict[str, list[float]], **more: Any) -> None:
    runs = [
        {"arm": arm, "round": i, "case": more.get("case", ""), "ttft": [t], "seconds": t}
        for arm, times in seconds.items()
        for i, t in enumerate(times)
    ]
    data = {"runs": runs, "arms": {arm: {"chunk": 1} for arm in seconds}}
    (folder / f"{suite}.json").write_text(json.dumps(data))


def line_of(what: str, machine: PaperMachine) -> tuple[str, ...]:
    (claim,) = (claim for claim in CLAIMS if claim.what.startswith(what))
    return row(claim, machine)


@pytest.mark.usefixtures("results")
def test_nothing_is_claimed_without_a_file(machine: PaperMachine) -> None:
    for claim in CLAIMS:
        assert row(claim, machine)[2:4] == (claim.missing, "")
        assert claim.missing.startswith(NOT_MEASURED)
    assert claims_page.chunk_row(machine)[2:4] == (NOT_MEASURED, "")


def test_a_measured_claim_shows_its_interval_and_follows_from_it(
    results: Path, machine: PaperMachine
) -> None:
    ours, theirs = [9.0, 9.1, 9.2], [10.0, 10.05, 10.1]
    write(results, "policies", {"CPP": theirs, "VPP": ours})
    ratio = paired_ratio(ours, theirs)
    shown = line_of("long: VPP over CPP, each", machine)
    assert shown[2] == f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] (`policies`)"
    assert shown[3] == Verdict.SIZE
    write(results, "policies", {"CPP": ours, "VPP": theirs})
    assert line_of("long: VPP over CPP, each", machine)[3] == Verdict.OPPOSITE
    write(results, "policies", {"CPP": ours, "VPP": [8.0, 9.1, 10.4]})
    assert line_of("long: VPP over CPP, each", machine)[3] == Verdict.NOT_SHOWN


def test_one_round_or_a_missing_arm_is_no_measurement(results: Path, machine: PaperMachine) -> None:
    write(results, "policies", {"DCPP": [10.0], "VPP": [9.0]})
    assert line_of("long: VPP over DCPP", machine)[2] == NOT_MEASURED
    write(results, "policies", {"CPP": [10.0, 10.0], "VPP": [9.0, 9.0]})
    assert line_of("long: VPP over DCPP", machine)[2] == NOT_MEASURED


def test_mixed_counts_the_papers_lengths_only(results: Path, machine: PaperMachine) -> None:
    write(results, "mixed", {"CPP": [10.0, 10.0], "VPP": [5.0, 5.0]}, case="conversation")
    assert line_of("mixed: VPP over CPP", machine)[2] == NOT_MEASURED
    write(results, "mixed", {"CPP": [10.0, 10.0], "VPP": [9.0, 9.0]}, case="paper")
    assert line_of("mixed: VPP over CPP", machine)[2] == "0.900 [0.900, 0.900] (`mixed`)"


def test_the_simulated_machine_reproduces_what_validation_says(machine: PaperMachine) -> None:
    """+2.6% to +13.1% over DCPP, and 24K the best chunk but at 64K."""
    assert line_of("long: VPP over DCPP", machine)[5] == Verdict.SIZE
    assert line_of("long: DCPP against CPP, 512K", machine)[5] == Verdict.SIZE
    assert claims_page.chunk_row(machine)[5] == Verdict.SIZE
