"""What the search calls best is no worse than any size somebody would try by hand."""

import pytest

from vllm_vpp.core.cost import QuadraticCost, StageCost
from vllm_vpp.core.layout import Layout
from vllm_vpp.sim.links import FREE
from vllm_vpp.sim.search import Family, Pipeline, best_of

PROMPT = 8000
ROUND = (256, 384, 512, 768, 1024, 1280, 1536, 2048, 3072, 4096)


@pytest.mark.parametrize("sweeps", [1, 2])
@pytest.mark.parametrize("family", [Family.FIXED, Family.EQUAL_TIME])
@pytest.mark.parametrize("fixed_part", [0.01, 0.052, 0.2])
def test_no_round_size_beats_the_best_that_was_found(
    family: Family, sweeps: int, fixed_part: float
) -> None:
    law = QuadraticCost(c0=fixed_part, b=2.7625e-4, a=2.4069e-7)
    layout = Layout(2, sweeps)
    pipeline = Pipeline(
        layout=layout,
        cost=StageCost.by_layers(law, [1] * layout.stages),
        law=law,
        links=FREE,
        depth=layout.depth(),
    )
    best = best_of(pipeline, family, PROMPT)
    for size in ROUND:
        tried = pipeline.run({"policy": family.value, "chunk": size}, [PROMPT]).ttft()[0]
        assert best.ttft <= tried * 1.001, size
