"""Writes blocks of a file, the same ones for the same number, syncs, and says the number. Goes on where an earlier one was killed.
With an argument: says the last number, after a check that the file is what it was then."""

import os
import random
import sys


def steps(number):
    """The blocks of a number, and the length that it leaves."""
    draw = random.Random(number)
    blocks = [(draw.randrange(8, 200000), draw.randrange(1, 9000)) for _ in range(draw.randrange(1, 8))]
    return blocks, draw.randrange(100000, 300000) if number % 7 == 0 else None


fd = os.open("data", os.O_RDWR | os.O_CREAT, 0o644)
last = int.from_bytes(os.pread(fd, 8, 0), "little")
if len(sys.argv) > 1:
    model = bytearray()
    for number in range(1, last + 1):
        blocks, length = steps(number)
        for at, count in blocks:
            model.extend(bytes(max(0, at + count - len(model))))
            model[at : at + count] = bytes([number % 256]) * count
        if length is not None:
            del model[length:]
            model.extend(bytes(length - len(model)))
        model.extend(bytes(max(0, 8 - len(model))))
        model[0:8] = number.to_bytes(8, "little")
    size = os.fstat(fd).st_size
    assert os.pread(fd, size + 1, 0) == model, f"the file is not what it was after {last}"
    print(last)
    sys.exit()
print(os.getpid(), flush=True)
while True:
    last += 1
    blocks, length = steps(last)
    for at, count in blocks:
        os.pwrite(fd, bytes([last % 256]) * count, at)
    if length is not None:
        os.ftruncate(fd, length)
    os.pwrite(fd, last.to_bytes(8, "little"), 0)
    os.fsync(fd)
    print(last, flush=True)
