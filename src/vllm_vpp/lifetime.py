"""Ends a process whose counterpart is gone: the engine without its parent, a rank without its peer.

vLLM's engine core notices that its workers die, and they that it dies, but not that its own parent
was killed: engine and ranks would hold their memory for ever. Does nothing for an engine that lives
in the user's own process, which nobody but the user ends.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable

__all__ = ["end_process", "end_with_parent"]

_CHECK_S = 1.0


def end_with_parent(grace_s: float = 10.0, *, asks: bool = True, program: bool = False) -> None:
    """Watch the parent of this process, if it was started by `multiprocessing`.

    `grace_s` is for an orderly end, which tells the ranks and frees shared memory; `asks`: whether
    to ask for one, where nobody else does; `program`: whether to watch any parent, as a program
    does that another one started.
    """
    parent = multiprocessing.parent_process()
    if parent is not None or program:
        end = end_process if asks else _insist
        lives = parent.is_alive if parent is not None else _always
        threading.Thread(
            target=_watch, args=(lives, os.getppid(), end, grace_s), name="vpp-parent", daemon=True
        ).start()


def _always() -> bool:
    return True


def _watch(
    lives: Callable[[], bool], starter: int, end: Callable[[float], None], grace_s: float
) -> None:
    """`starter`: whose child this is, which is not the parent where a fork server stands between.

    Siblings that were forked hold the parent's sentinel open, and a server may outlive the parent.
    """
    while os.getppid() == starter and lives():
        time.sleep(_CHECK_S)
    end(grace_s)


def end_process(grace_s: float = 10.0) -> None:
    """End in good order, as on an order to; after `grace_s` seconds, without it. Returns at once.

    An orderly end can hang: in sending an answer to nobody, or in a collective library that waits
    for a peer that is gone, where Python does not see the signal.
    """
    threading.Thread(target=_insist, args=(grace_s,), name="vpp-end", daemon=True).start()
    os.kill(os.getpid(), signal.SIGTERM)


def _insist(grace_s: float) -> None:
    time.sleep(grace_s)
    os._exit(1)
