"""A law fitted while serving: finds the truth through noise, gives None rather than nonsense."""

import random
import statistics
from collections.abc import Callable

import pytest

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.cost import Law, QuadraticCost
from vllm_vpp.core.online import OnlineCost

TRUE = QuadraticCost(c0=0.02, b=2e-4, a=1.5e-8)
GUESS = QuadraticCost(c0=0.0, b=1.0, a=1e-5)  # another unit, another shape
HORIZON = 65_536


def chunk(tokens: int, prefix: int = 0) -> MicroBatch:
    return MicroBatch(0, (Chunk("r", prefix, tokens),))


def seen(
    law: Callable[[MicroBatch], float], longest: int, *, size: int = 2048, noise: float = 0.0
) -> OnlineCost:
    rng = random.Random(1)
    online = OnlineCost(skip=0)
    for _ in range(2):
        for prefix in range(0, longest, size):
            batch = chunk(size, prefix)
            online.add(batch, law(batch) * (1 + rng.uniform(-noise, noise)))
    for tokens in (64, 256, 640, 1111):
        online.add(chunk(tokens), law(chunk(tokens)))
    return online


def off_by(found: Law | None, law: Callable[[MicroBatch], float]) -> float:
    assert found is not None
    return max(
        abs(found.seconds(chunk(x, at)) / law(chunk(x, at)) - 1)
        for x in (512, 4096)
        for at in (0, 20_000, 60_000)
    )


def test_the_fit_finds_the_law_through_noise() -> None:
    assert off_by(seen(TRUE.seconds, HORIZON).quadratic(GUESS, HORIZON), TRUE.seconds) < 0.03
    noisy = seen(TRUE.seconds, HORIZON, noise=0.1)
    assert off_by(noisy.quadratic(GUESS, HORIZON), TRUE.seconds) < 0.08


def test_a_hiccup_does_not_move_the_fit() -> None:
    online = seen(TRUE.seconds, HORIZON, noise=0.01)
    before = online.quadratic(GUESS, HORIZON)
    online.add(chunk(2048, 30_000), 50.0)
    after = online.quadratic(GUESS, HORIZON)
    assert before is not None
    assert off_by(after, before.seconds) < 0.02


def test_where_only_short_prompts_were_seen_the_prior_keeps_its_shape() -> None:
    prior = QuadraticCost(c0=2 * TRUE.c0, b=2 * TRUE.b, a=2 * TRUE.a)
    found = seen(TRUE.seconds, 2048, size=512).quadratic(prior, HORIZON)
    assert off_by(found, TRUE.seconds) < 0.1


def test_a_token_never_costs_nothing() -> None:
    """Times of a small model whose first chunks were quick, others using the processors later."""
    ms = 173, 261, 293, 360, 490, 611, 680, 656, 777, 940, 1003, 1104, 1180, 1245
    online = OnlineCost(skip=0)
    for i, took in enumerate(ms):
        online.add(chunk(512, (i + 2) * 512), took * 1e-3)
    found = online.quadratic(QuadraticCost(c0=0.01, b=2.5e-4, a=2.5e-7), HORIZON)
    assert found is not None
    assert found.b > 0
    law = found.seconds
    errors = [abs(law(chunk(512, (i + 2) * 512)) / (took * 1e-3) - 1) for i, took in enumerate(ms)]
    assert statistics.median(errors) < 0.15


def test_a_law_of_any_shape_follows_a_sliding_window() -> None:
    def windowed(batch: MicroBatch) -> float:
        only = batch.chunks[0]
        reach = [min(only.prefix + k, 8192) for k in range(0, only.tokens, 16)]
        return 0.02 + sum(16 * (2e-4 + 4e-8 * r) for r in reach)

    online = seen(windowed, HORIZON)
    marginal, quadratic = online.marginal(), online.quadratic(GUESS, HORIZON)
    assert marginal is not None
    assert quadratic is not None
    assert online.misfit(marginal) < 0.02
    assert online.misfit(quadratic) > online.misfit(marginal)
    assert off_by(marginal, windowed) < 0.12 < off_by(quadratic, windowed)


def test_misfit_is_of_the_shape_only() -> None:
    online = seen(TRUE.seconds, HORIZON)
    twice = QuadraticCost(c0=2 * TRUE.c0, b=2 * TRUE.b, a=2 * TRUE.a)
    assert online.misfit(twice) == pytest.approx(0, abs=1e-9)
    assert online.misfit(GUESS) > 0.05


def test_too_little_gives_nothing() -> None:
    online = OnlineCost()
    for _ in range(6):
        online.add(chunk(2048), 1.0)
    assert online.quadratic(GUESS, HORIZON) is None
    assert online.marginal() is None
    assert online.misfit(GUESS) == 0


def test_decode_steps_and_the_first_two_are_not_kept() -> None:
    online = OnlineCost()
    for tokens in (1, 2048, 1, 2048, 2048):
        online.add(chunk(tokens), 1.0)
    assert len(online.kept) == 1


def test_scale_says_how_much_slower_the_machine_is_than_the_law() -> None:
    online = seen(lambda batch: 1.7 * TRUE.seconds(batch), HORIZON)
    assert online.scale(TRUE) == pytest.approx(1.7)
    few = OnlineCost(skip=0)
    few.add(chunk(64), 1.0)
    assert few.scale(TRUE) is None
