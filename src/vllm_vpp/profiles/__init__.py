"""Traces of torch.profiler, of this plugin's engines or of stock vLLM's: what each rank did.

Imports neither torch nor vLLM.
"""

from vllm_vpp.profiles.breakdown import Profile, profile
from vllm_vpp.profiles.torch_trace import in_order, trace_of

__all__ = ["Profile", "in_order", "profile", "trace_of"]
