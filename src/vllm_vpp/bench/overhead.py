"""What watching costs: recording and live numbers, beside the same engine without; and profiles.

Owns the suites `recording` and `operators`.
"""

from dataclasses import replace

from vllm_vpp.bench.arms import llama_arm, random_prompt
from vllm_vpp.bench.engine import Request
from vllm_vpp.bench.suite import Plan

__all__ = ["LIVE", "NOTHING", "TRACE", "operators", "recording"]

NOTHING, LIVE, TRACE = "nothing", "live numbers", "live numbers and trace"
_TOKENS, _CHUNK = 8192, 512  # many actions, so that a cost per action shows


def recording() -> Plan:
    """A V that keeps nothing, with live numbers (the default), and that records as well.

    All in one engine: another one, started alike, may be slower by more than is looked for here.
    """
    watched = {NOTHING: (False, False), LIVE: (True, False), TRACE: (True, True)}
    arms = [
        replace(
            llama_arm(name, {"layout": "v"}, chunk=_CHUNK, length=_TOKENS + 16),
            watch={"live": live, "trace": trace},
        )
        for name, (live, trace) in watched.items()
    ]
    return arms, {"": [Request(prompt=random_prompt(_TOKENS, 1))]}


def operators() -> Plan:
    """The plain pipeline and the V under torch.profiler."""
    arms = [
        replace(llama_arm(name, {"layout": layout}, chunk=1024, length=_TOKENS + 16), profile=True)
        for name, layout in (("CPP", "linear"), ("VPP", "v"))
    ]
    return arms, {"": [Request(prompt=random_prompt(_TOKENS, 1))]}
