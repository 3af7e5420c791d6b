"""A process ends when its parent is killed or a peer is gone, also when it ignores SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CODE = """
import multiprocessing, os, signal, subprocess, sys, time
from vllm_vpp.lifetime import end_with_parent

def child():
    if sys.argv[1] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.argv[1] != "unwatched":
        end_with_parent(grace_s=0.5, program=sys.argv[1] == "started")
    print(os.getpid(), flush=True)
    time.sleep(120)

if __name__ == "__main__":
    kind = "forkserver" if sys.argv[1] == "of a server" else "fork"
    if sys.argv[1] == "started":
        child()
    elif sys.argv[1] == "program":
        subprocess.Popen([sys.executable, __file__, "started"])
    else:
        multiprocessing.get_context(kind).Process(target=child).start()
    time.sleep(120)
"""


def alive(pid: int) -> bool:
    """Whether it runs; a zombie that nobody has collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads Linux's process table")
@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("obedient", True),
        ("deaf", True),
        ("unwatched", False),
        ("of a server", True),
        ("program", True),
    ],
)
def test_a_watching_process_ends_with_its_parent(kind: str, ends: bool, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(CODE)
    with subprocess.Popen([sys.executable, str(script), kind], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(1.5)
        assert alive(child), "ended although its parent lives"
        parent.kill()
    deadline = time.monotonic() + (60 if ends else 4)
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    survived = alive(child)
    if survived:
        os.kill(child, signal.SIGKILL)
    assert survived != ends


DEAF = """
import signal, time
from vllm_vpp.lifetime import end_process

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as where Python is stuck in a library
end_process(grace_s=0.5)
time.sleep(120)
"""


def test_a_process_that_cannot_end_in_good_order_ends_without() -> None:
    assert subprocess.run([sys.executable, "-c", DEAF], check=False, timeout=60).returncode == 1


def test_a_process_ends_in_good_order_where_it_can() -> None:
    code = DEAF.replace("signal.SIG_IGN", "lambda *_: exit(7)")
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 7
