#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cable with a one-way delay between two tap interfaces, for kernels without netem: delay_cable.py TAP_A TAP_B MICROSECONDS.

Creates both interfaces and passes each frame from one to the other after the delay. Segmentation is left to the receiver (frames of
up to 64 KiB), so that it can handle some Gbit/s. It runs until it is killed, which also removes the interfaces.
"""
import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
QUEUE_BYTES = 64 << 20
PR_SET_TIMERSLACK = 29


def tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


class Direction:
    def __init__(self, source, sink, delay_s):
        self.source, self.sink, self.delay_s = source, sink, delay_s
        self.queue = collections.deque()  # (due, frame)
        self.queued_bytes = 0

    def receive(self):
        try:
            while True:
                frame = os.read(self.source, 70000)
                if self.queued_bytes <= QUEUE_BYTES:
                    self.queue.append((time.monotonic() + self.delay_s, frame))
                    self.queued_bytes += len(frame)
        except OSError:  # no more frames, or the interface is down
            pass

    def deliver(self):
        while self.queue and self.queue[0][0] <= time.monotonic():
            _, frame = self.queue.popleft()
            self.queued_bytes -= len(frame)
            try:
                os.write(self.sink, frame)
            except OSError:  # the interface is down or full: the frame is lost, as on a wire
                pass


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)  # sleeps end on time, not 50 us later
    a, b = tap(sys.argv[1]), tap(sys.argv[2])
    directions = [Direction(a, b, int(sys.argv[3]) * 1e-6), Direction(b, a, int(sys.argv[3]) * 1e-6)]
    by_source = {direction.source: direction for direction in directions}
    while True:
        dues = [direction.queue[0][0] for direction in directions if direction.queue]
        timeout = max(0.0, min(dues) - time.monotonic()) if dues else None
        for fd in select.select([a, b], [], [], timeout)[0]:
            by_source[fd].receive()
        for direction in directions:
            direction.deliver()


main()
