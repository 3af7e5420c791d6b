"""What a rank does beside running stages: how it fails, and whose steps a profiler counts."""

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_vpp.core.schedule import Action

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")


class _Worker:
    """Stands in for the platform's worker class."""

    def profile(self, is_start: bool = True) -> None:
        self.profiler = "started" if is_start else None


def host(**fields: Any) -> Any:
    from vllm_vpp.plugin.worker import StageHost

    class Host(StageHost, _Worker):
        pass

    made = object.__new__(Host)
    vars(made).update(fields)
    return made


@pytest.mark.parametrize("replies", [True, False])
@pytest.mark.parametrize("connector", [True, False])
@pytest.mark.parametrize("samples", [True, False])
def test_a_rank_that_fails_says_so_or_ends(replies: bool, connector: bool, samples: bool) -> None:
    """vLLM passes on what a rank raises only where it expects its reply."""
    from vllm_vpp.plugin.message import Actions

    def fail(message: Actions) -> None:
        raise ValueError("out of memory")

    rank = host(
        _replies=replies,
        _outputs={} if connector else None,
        _run=fail,
        transport=SimpleNamespace(rank=0),
    )
    message = Actions((Action(0, 0),), (), {0: (True, None)} if samples else {})
    heard = samples and (replies or connector)
    with pytest.raises(ValueError if heard else SystemExit):
        rank.vpp_run(message)


def test_a_profiler_counts_the_steps_of_one_stage() -> None:
    workers = [SimpleNamespace(profiler=None) for _ in range(2)]
    rank = host(
        stages={stage: SimpleNamespace(worker=w) for stage, w in zip((0, 3), workers, strict=True)}
    )
    rank.profile()
    assert [worker.profiler for worker in workers] == [None, "started"]
    rank.profile(False)
    assert workers[1].profiler is None
