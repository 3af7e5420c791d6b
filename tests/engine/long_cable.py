"""A cable as long as wanted: two network devices, and what enters one leaves the other later.

`python long_cable.py FIRST SECOND SECONDS` makes the devices, says `ready`, and carries packets
until it is ended, when the devices vanish. It takes root. (The kernel's `netem` is not everywhere.)
"""

import contextlib
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
LARGEST = 1 << 16  # bytes of a packet


def device(name: str) -> int:
    """Make a device; reading gives the packets that leave by it, writing makes packets arrive."""
    handle = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return handle


def carry(first: int, second: int, late_s: float) -> None:
    """Every packet in its order, `late_s` after it came."""
    other = {first: second, second: first}
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        patience = max(under_way[0][0] - time.monotonic(), 0.0) if under_way else None
        for end in select.select(list(other), [], [], patience)[0]:
            with contextlib.suppress(OSError):  # the device is down
                packet = os.read(end, LARGEST)
                under_way.append((time.monotonic() + late_s, other[end], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, end, packet = under_way.popleft()
            with contextlib.suppress(OSError):  # lost, as on a cable that is cut
                os.write(end, packet)


if __name__ == "__main__":
    ends = device(sys.argv[1]), device(sys.argv[2])
    print("ready", flush=True)
    carry(*ends, float(sys.argv[3]))
