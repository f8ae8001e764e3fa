"""Appends records, one write and one sync each, and says their numbers. Goes on where an earlier one was killed. With an argument:
says the last number, after a check of every record. Nothing ties several writes together. The last one may be there
in part: a power cut leaves that of what was not synced, and the kernel may pass one write on in several requests, of
which a killed program sends the first ones. That part is cut off, and not counted."""

import os
import random
import sys


def record(number):
    """The bytes of a record."""
    draw = random.Random(number)
    body = draw.randbytes(draw.randrange(1, 20000))
    return number.to_bytes(8, "little") + len(body).to_bytes(8, "little") + body


fd = os.open("records", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
if len(sys.argv) == 1:
    print(os.getpid(), flush=True)
there = os.pread(fd, os.fstat(fd).st_size + 1, 0)
last, at = 0, 0
while at < len(there):
    last += 1
    whole = record(last)
    if there[at : at + len(whole)] != whole:
        assert len(there) - at <= len(whole), f"record {last} is not what was written"
        last -= 1
        if len(sys.argv) == 1:
            os.ftruncate(fd, at)
        break
    at += len(whole)
if len(sys.argv) > 1:
    print(last)
    sys.exit()
while True:
    last += 1
    whole = record(last)
    assert os.write(fd, whole) == len(whole)
    os.fsync(fd)
    print(last, flush=True)
