"""Numbers shared between processes, and what of them is on `/metrics`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_vpp.plugin import live
from vllm_vpp.plugin.board import Board, EngineNumbers, RankNumbers
from vllm_vpp.plugin.message import Took
from vllm_vpp.plugin.meter import EngineMeter, RankMeter
from vllm_vpp.plugin.settings import Resolved, Settings
from vllm_vpp.plugin.transport import Arrival

pytestmark = pytest.mark.vllm
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings = Settings().resolve(Resolved(sweeps=2, layers=[1, 1, 1, 1]))
    return SimpleNamespace(
        additional_config={"vpp": settings.model_dump(exclude_none=True)},
        instance_id="test",
        parallel_config=SimpleNamespace(pipeline_parallel_size=2, data_parallel_index=0),
    )


@pytest.fixture
def board(config: Any) -> Iterator[Board]:
    made = Board.create(config)
    assert made is not None
    yield made
    made.remove()


def test_what_one_process_writes_another_reads(config: Any, board: Board) -> None:
    other = Board.join(config)
    assert other is not None
    numbers = EngineNumbers(1.5, 3, 7, 4096, 0.02, 1)
    board.set_engine(numbers)
    other.add_rank(1, RankNumbers(0.5, 0.2, 0.1, 1))
    other.add_rank(1, RankNumbers(0.5, 0.0, 0.0, 1))
    assert other.engine() == numbers
    assert board.rank(1) == pytest.approx((1.0, 0.2, 0.1, 2))
    assert board.rank(0) == (0, 0, 0, 0)


def test_the_file_is_private_and_goes_with_the_engine(config: Any, board: Board) -> None:
    assert board.path.stat().st_mode & 0o777 == 0o600
    board.remove()
    assert not board.path.exists()
    assert Board.join(config) is None


def test_exposed_communication_is_waiting_with_the_transfer_under_way(
    config: Any, board: Board
) -> None:
    sender, receiver = RankMeter(board, 0), RankMeter(Board.join(config), 1)
    s = 1_000_000_000
    sender.sender(1)(3 * s)
    arrival = Arrival({}, [], [], posted_ns=0, done_ns=5 * s)
    receiver.ran(1, 2 * s, 5 * s, arrival)
    receiver.computed(Took(1, 0, 4 * s))
    assert board.rank(1) == pytest.approx((4, 3, 2, 1))


def test_the_engine_is_active_while_something_is_in_flight(board: Board) -> None:
    meter, s = EngineMeter(board), 1_000_000_000
    for at, in_flight in ((0, 1), (2, 2), (5, 0), (50, 0), (60, 1), (61, 0)):
        meter.update(at * s, in_flight, 0.0, 0)
    assert board.engine().active == pytest.approx(6)


def test_bubbles_look_back_for_a_window(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now))
    engine = live._Engine("0", board)
    assert engine.bubbles() == [None, None]

    def run(seconds: float, busy: float) -> None:
        clock.now += seconds
        board.set_engine(board.engine()._replace(active=board.engine().active + seconds))
        board.add_rank(0, RankNumbers(busy, 0, 0, 1))
        board.add_rank(1, RankNumbers(seconds, 0, 0, 1))

    run(20, 10)
    assert engine.bubbles() == pytest.approx([0.5, 0.0])
    run(20, 20)
    engine.bubbles()
    run(20, 20)
    assert engine.bubbles() == pytest.approx([0.0, 0.0])


def test_exposed_communication_is_no_bubble(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 s: rank 0 computes 10 and waits 8, 6 of them for a transfer under way."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now))
    engine = live._Engine("0", board)
    clock.now = 20.0
    board.set_engine(board.engine()._replace(active=20.0))
    board.add_rank(0, RankNumbers(10, 8, 6, 1))
    board.add_rank(1, RankNumbers(15, 5, 5, 1))
    assert engine.bubbles() == pytest.approx([0.2, 0.0])


def test_a_rank_that_never_wrote_is_not_shown(board: Board) -> None:
    engine = live._Engine("0", board)
    board.set_engine(board.engine()._replace(active=20.0))
    board.add_rank(0, RankNumbers(10, 0, 0, 1))
    samples = [s for metric in live._rank_metrics([engine]) for s in metric.samples]
    assert {s.labels["rank"] for s in samples} == {"0"}
    assert [s.value for s in samples if "bubble" in s.name] == pytest.approx([0.5])


def test_an_engine_without_vpp_gets_no_metrics() -> None:
    plain: Any = SimpleNamespace(additional_config={}, instance_id="plain")
    logger = live.VPPStatLogger(plain)
    logger.log_engine_initialized()
    assert logger._shown


def test_an_engine_that_keeps_no_numbers_gets_none_and_no_warning(
    config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config.additional_config["vpp"]["metrics"] = False
    logger = live.VPPStatLogger(config)
    logger.log_engine_initialized()
    assert logger._shown
    assert "no live metrics" not in caplog.text


def test_the_dashboard_asks_for_metrics_that_exist(board: Board) -> None:
    collector = live._Collector()
    collector.engines["0"] = live._Engine("0", board)
    names = set()
    for metric in collector.collect():
        names.add(metric.name + ("_total" if metric.type == "counter" else ""))
    text = json.dumps(json.loads(DASHBOARD.read_text()))
    asked = set(re.findall(r"vllm:vpp_[a-z_]+", text))
    assert asked
    assert asked <= names


def test_a_rank_that_ends_takes_the_file_of_a_killed_engine_away(config: Any, board: Board) -> None:
    rank = RankMeter(Board.join(config), 1)
    RankMeter(None, 0).close()
    assert board.path.exists()
    rank.close()
    assert not board.path.exists()
