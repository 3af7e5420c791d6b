"""Two machines on one: network namespaces with a cable between them, and their own shared memory.

Owns making and removing them, which takes root. What runs on them is the tests' own. A cable is a
virtual one of the kernel's, or one that is as long as wanted (`long_cable.py`).
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def _run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=check)
    return done.stdout


@dataclass(frozen=True)
class Host:
    """A namespace, its end of the cable, and its address."""

    name: str
    interface: str
    address: str

    def prefix(self) -> list[str]:
        """What to put before a command that is to run on this host."""
        own_memory = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        return ["ip", "netns", "exec", self.name, "sh", "-c", own_memory, "sh"]

    def variables(self) -> dict[str, str]:
        """Where the host's processes are to listen."""
        return {
            "VLLM_HOST_IP": self.address,
            "GLOO_SOCKET_IFNAME": self.interface,
            "TP_SOCKET_IFNAME": self.interface,
        }

    def sent_bytes(self) -> int:
        """What has left by the cable."""
        path = f"/sys/class/net/{self.interface}/statistics/tx_bytes"
        return int(_run("ip", "netns", "exec", self.name, "cat", path))

    def limit(self, bytes_per_second: float) -> None:
        """Send no faster than that from now on."""
        rate = f"{max(round(bytes_per_second * 8), 8000)}bit"
        shaping = ["tbf", "rate", rate, "burst", "64kb", "latency", "10s"]
        device = ["dev", self.interface, "root"]
        _run("tc", "-n", self.name, "qdisc", "replace", *device, *shaping)

    def cut(self) -> None:
        """Pull the cable out."""
        _run("ip", "-n", self.name, "link", "set", self.interface, "down")


@contextlib.contextmanager
def _cable(first: Host, second: Host, late_s: float) -> Iterator[None]:
    """Between two hosts, `late_s` seconds long each way."""
    if late_s == 0:
        ends = ["type", "veth", "peer", "name", second.interface, "netns", second.name]
        _run("ip", "-n", first.name, "link", "add", first.interface, *ends)
        yield
        return
    script = str(Path(__file__).with_name("long_cable.py"))
    command = [sys.executable, script, first.interface, second.interface, str(late_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as carrier:
        try:
            if carrier.stdout is None or carrier.stdout.readline() != "ready\n":
                raise subprocess.CalledProcessError(carrier.wait(10), command)
            for host in (first, second):
                largest = ["mtu", "65000", "txqueuelen", "10000"]
                _run("ip", "link", "set", host.interface, *largest, "netns", host.name)
            yield
        finally:
            carrier.kill()


@contextlib.contextmanager
def two_hosts(late_s: float = 0.0) -> Iterator[tuple[Host, Host] | None]:
    """Two hosts that reach each other and nothing else; None where that is not permitted.

    What one sends is `late_s` seconds on its way to the other.
    """
    if shutil.which("ip") is None or os.geteuid() != 0 or not Path("/proc/self/ns/net").exists():
        yield None
        return
    tag = f"vpp{os.getpid() % 100_000}"
    pair = tuple(Host(f"{tag}{s}", f"{tag}{s}", f"10.231.7.{i}") for i, s in ((1, "a"), (2, "b")))
    first, second = pair
    connected = True
    with contextlib.ExitStack() as made:
        made.callback(_remove, pair)
        try:
            for host in pair:
                _run("ip", "netns", "add", host.name)
            made.enter_context(_cable(first, second, late_s))
            for host in pair:
                address = [f"{host.address}/24", "dev", host.interface]
                _run("ip", "-n", host.name, "addr", "add", *address)
                for link in ("lo", host.interface):
                    _run("ip", "-n", host.name, "link", "set", link, "up")
        except subprocess.CalledProcessError:
            connected = False
        yield (first, second) if connected else None


def _remove(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        _run("ip", "netns", "del", host.name, check=False)
