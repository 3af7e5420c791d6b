"""Pictures of timelines: text, plotly figures and Chrome traces.

Owns presentation only; all numbers come from `core.metrics`.
"""

from vllm_vpp.report.text import render

__all__ = ["render"]
