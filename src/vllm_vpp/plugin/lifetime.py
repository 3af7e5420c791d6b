"""Ends the engine's process when the process that serves its answers is gone.

vLLM's engine core notices that its workers die, and they that it dies, but not that its own parent
was killed: engine and ranks would hold their memory for ever. Does nothing for an engine that lives
in the user's own process, which nobody but the user ends.
"""

import multiprocessing
import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_CHECK_S = 1.0


def end_with_parent(grace_s: float = 10.0) -> None:
    """Watch the parent of this process, if it was started by `multiprocessing`.

    `grace_s` is for an orderly end, which tells the ranks and frees shared memory.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_watch, args=(grace_s,), name="vpp-parent", daemon=True).start()


def _watch(grace_s: float) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == parent.pid:  # its sentinel would also be held open by forked siblings
        time.sleep(_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)  # vLLM's engine core ends in good order on that
    time.sleep(grace_s)
    os._exit(1)  # it hangs, perhaps in sending an answer to nobody; the ranks see the pipe close
