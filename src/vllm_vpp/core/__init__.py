"""Ideas without machinery: layouts, schedules, ordering, timelines, metrics and costs.

Pure Python and numpy. Imports neither torch nor vLLM, reads no clock, keeps no global state, so
that the simulator and the engine run the very same objects.
"""

__all__: list[str] = []
