"""The planner as an engine asks it: at start-up, and again when its cost law has changed.

Owns the question, the answer and the choice; `python -m vllm_vpp.auto` takes one as JSON and prints
the other. The engine asks in a process of its own, so that planning never holds up serving.
"""

from vllm_vpp.auto.choice import choose
from vllm_vpp.auto.question import Answer, Law, Question

__all__ = ["Answer", "Law", "Question", "choose"]
