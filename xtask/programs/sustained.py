"""Writes every 4 KiB block of a file once, in an order drawn at random, with little to do before and after, and says how long each
write took.

sustained.py prepare BLOCKS                          makes the file, durably
sustained.py write BLOCKS SYNC BEFORE AFTER MOST     SYNC: each write, or only the end; seconds of one write each 10 ms before
                                                     and after; seconds of the burst at most
sustained.py check BLOCKS BEFORE BURST AFTER         that the file has what so many writes left
"""

import gc
import json
import os
import random
import struct
import sys
import time

BLOCK = 4096
FILE = "blocks"
PAUSE = 10_000_000
WHAT, BLOCKS = sys.argv[1], int(sys.argv[2])


def content(number, phase):
    return struct.pack("<QQ", number, phase) * (BLOCK // 16)


def places():
    """Each block once, always in the same order."""
    order = list(range(BLOCKS))
    random.Random(BLOCKS).shuffle(order)
    return order


def prepare():
    with open(FILE, "wb") as file:
        for number in range(BLOCKS):
            file.write(content(number, 0))
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(".", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


class Writer:
    def __init__(self, sync):
        self.fd = os.open(FILE, os.O_RDWR)
        self.sync = sync
        self.order = places()

    def write(self, times, nth, phase):
        place = self.order[nth % BLOCKS]
        block = content(place, phase)
        start = time.perf_counter_ns()
        os.pwrite(self.fd, block, place * BLOCK)
        if self.sync:
            os.fsync(self.fd)
        times.append((start, time.perf_counter_ns()))

    def lightly(self, phase, seconds):
        """One write each 10 ms; what comes too late for that is left out."""
        times, due = [], time.perf_counter_ns()
        end = due + int(seconds * 1e9)
        while due < end:
            time.sleep(max(0, due - time.perf_counter_ns()) / 1e9)
            self.write(times, len(times), phase)
            due = max(due + PAUSE, time.perf_counter_ns())
        return times

    def burst(self, phase, most):
        times, end = [], time.perf_counter_ns() + int(most * 1e9)
        while len(times) < BLOCKS and time.perf_counter_ns() < end:
            self.write(times, len(times), phase)
        return times


def write(sync, before, after, most):
    writer = Writer(sync == "each")
    gc.disable()
    said = {"before": writer.lightly(1, float(before)), "burst": writer.burst(2, float(most))}
    if sync == "end":
        os.fsync(writer.fd)
    said["end"] = time.perf_counter_ns()
    said["after"] = writer.lightly(3, float(after))
    print(json.dumps(said, separators=(",", ":")))


def check(before, burst, after):
    phases = [0] * BLOCKS
    order = places()
    for phase, writes in enumerate((before, burst, after), 1):
        for place in order[: int(writes)]:
            phases[place] = phase
    with open(FILE, "rb") as file:
        for number, phase in enumerate(phases):
            if file.read(BLOCK) != content(number, phase):
                sys.exit(f"block {number} is not what phase {phase} wrote")
        if file.read(1):
            sys.exit("the file is too long")


{"prepare": prepare, "write": write, "check": check}[WHAT](*sys.argv[3:])
