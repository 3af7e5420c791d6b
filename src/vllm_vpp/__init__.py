"""Prefill of long prompts on a V-shaped pipeline of virtual stages, inside stock vLLM.

Layers, each using only those before it: `core` (layouts, schedules, timelines, costs, policies),
`sim` (simulator and planner), and, beside it, `plugin` (the only place that imports vLLM or
torch); `report`, `bench` and `cli` on top.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
