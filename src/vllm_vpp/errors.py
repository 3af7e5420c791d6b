"""The errors this package raises for bad input, as one small tree.

Every message names the value, the allowed set and the fix, in one line. What the package itself
guarantees is checked with `assert` instead and never reaches a user.
"""

__all__ = ["ConfigError", "InputError", "ScheduleError", "UnsupportedError", "VPPError"]


class VPPError(Exception):
    """Root of the tree: catch this to catch everything the package raises on purpose."""


class InputError(VPPError, ValueError):
    """A file, an argument or a number that cannot be used."""


class ConfigError(InputError):
    """An unknown key or an impossible value in the `vpp` part of vLLM's additional config."""


class UnsupportedError(VPPError, ValueError):
    """A combination of features that would give wrong answers or hang, refused at start-up."""


class ScheduleError(VPPError, ValueError):
    """A schedule that breaks a rule; the message shows the grid with the failing cell marked."""
