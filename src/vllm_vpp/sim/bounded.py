"""What it costs a prompt when requests that decode beside it are to get their tokens in time.

Owns the comparison of an option as it is with the same in chunks that `core.itl` allows.
"""

from dataclasses import dataclass

from vllm_vpp.core.batch import Chunk, MicroBatch
from vllm_vpp.core.chunking import make_policy
from vllm_vpp.core.itl import ItlBound
from vllm_vpp.sim.options import Option

__all__ = ["Bounded", "bounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """An option under a bound. `reached`: seconds between tokens at the end of the prompt.

    `ttft`: seconds, None where the target is out of reach with the smallest chunk; `slower`: than
    without the bound, relative.
    """

    target: float
    reached: float
    chunks: tuple[int, ...] = ()
    ttft: float | None = None
    slower: float = 0.0

    @property
    def sentence(self) -> str:
        """One line for people."""
        target = f"ITL of at most {self.target * 1e3:.4g} ms beside it"
        if self.ttft is None:
            return f"{target}: out of reach, the smallest chunk takes {self.reached * 1e3:.4g} ms."
        least, most = min(self.chunks), max(self.chunks)
        sizes = str(least) if least == most else f"{least}-{most}"
        return f"{target}: chunks of {sizes}, TTFT {self.ttft:.4g} s ({self.slower:+.1%})."


def bounded(option: Option, prompt: int, target: float) -> Bounded:
    """The option's own chunking, no chunk larger than the target allows while a request decodes."""
    pipeline = option.pipeline
    bound = ItlBound(
        target=target,
        law=pipeline.law,
        ranks=option.layout.ranks,
        in_flight=pipeline.depth or option.layout.depth_beside_decodes(),
    )
    block = min(pipeline.block, prompt)
    last = _last_step(bound, prompt, block)
    if last > target:
        return Bounded(target=target, reached=last)
    policy = make_policy(option.candidate.spec, law=pipeline.law, ranks=option.layout.ranks)
    chunks = bound.chunks(policy, prompt, limit=pipeline.limit, block=block)
    ttft = pipeline.run({"policy": "list", "chunks": list(chunks)}, [prompt]).ttft()[0]
    return Bounded(
        target=target,
        reached=_last_step(bound, prompt, chunks[-1]),
        chunks=chunks,
        ttft=ttft,
        slower=ttft / option.ttft - 1,
    )


def _last_step(bound: ItlBound, prompt: int, tokens: int) -> float:
    """Seconds of the step with a prompt's last tokens and one decode after as many."""
    chunks = (Chunk("prompt", prompt - tokens, tokens), Chunk("decode", prompt, 1))
    return bound.seconds(MicroBatch(0, chunks))
