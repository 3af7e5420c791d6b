"""Ends the engine's process when the process that serves its answers is gone.

vLLM's engine core notices that its workers die, and they that it dies, but not that its own parent
was killed: engine and ranks would hold their memory for ever. Does nothing for an engine that lives
in the user's own process.
"""

import multiprocessing
import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_GRACE_S = 10.0  # for an orderly end, which tells the ranks and frees shared memory


def end_with_parent() -> None:
    """Watch the parent process, if this process was started by `multiprocessing`."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait, args=(parent,), name="vpp-parent", daemon=True).start()


def _wait(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # vLLM's engine core ends in good order on that
    time.sleep(_GRACE_S)
    os._exit(1)  # it hangs, perhaps in sending an answer to nobody; the ranks see the pipe close
