"""Two machines on one: network namespaces with a cable between them, and their own shared memory.

Owns making and removing them, which takes root. What runs on them is the tests' own.
"""

import contextlib
import os
import shutil
import subprocess
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
def two_hosts() -> Iterator[tuple[Host, Host] | None]:
    """Two hosts that reach each other and nothing else; None where that is not permitted."""
    if shutil.which("ip") is None or os.geteuid() != 0 or not Path("/proc/self/ns/net").exists():
        yield None
        return
    tag = f"vpp{os.getpid() % 100_000}"
    pair = tuple(Host(f"{tag}{s}", f"{tag}{s}", f"10.231.7.{i}") for i, s in ((1, "a"), (2, "b")))
    first, second = pair
    try:
        for host in pair:
            _run("ip", "netns", "add", host.name)
        cable = ["type", "veth", "peer", "name", second.interface, "netns", second.name]
        _run("ip", "-n", first.name, "link", "add", first.interface, *cable)
        for host in pair:
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            for link in ("lo", host.interface):
                _run("ip", "-n", host.name, "link", "set", link, "up")
    except subprocess.CalledProcessError:
        _remove(pair)
        yield None
        return
    try:
        yield first, second
    finally:
        _remove(pair)


def _remove(hosts: tuple[Host, ...]) -> None:
    for host in hosts:
        _run("ip", "netns", "del", host.name, check=False)
