"""Simulator, cost models and planner: what a pipeline would do, without an engine.

Imports `core` only: the dispatcher, the orders and the chunking policies are the engine's own.
"""

from vllm_vpp.sim.links import FREE, Links
from vllm_vpp.sim.request import Request, at_once, one_after_another, read_trace
from vllm_vpp.sim.simulate import Run, Setup, simulate

__all__ = [
    "FREE",
    "Links",
    "Request",
    "Run",
    "Setup",
    "at_once",
    "one_after_another",
    "read_trace",
    "simulate",
]
