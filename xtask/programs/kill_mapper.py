"""Stores to a file that it has mapped, the same words for the same number, syncs, and says the number. Goes on where an earlier one was
killed. With an argument: says the last number, after a check that the file is what it was then: every store up to that sync and none after
it. Some of the bytes go there by calls, some through a second mapping or by a child, and the file gets longer and shorter."""

import mmap
import os
import random
import sys

PAGE = 4096


def steps(number):
    """What a number stores, one after the other: by which way, where, and how many bytes; and how long the file is before."""
    draw = random.Random(number)
    length = (16 + number // 5 % 48) * PAGE
    stores = []
    for _ in range(draw.randrange(1, 24)):
        count = draw.randrange(1, 3000)
        # What a child stored that ended by itself stays if its parent is killed that has stored nothing since the sync.
        children = ["child"] if stores else []
        stores.append((draw.choice(["store"] * 12 + ["other"] * 4 + ["call"] * 4 + children), draw.randrange(8, length - count), count))
    return length, stores


def content(number, place):
    """The byte that the store with this place in a number leaves everywhere."""
    return (number * 31 + place) % 256


fd = os.open("mapped", os.O_RDWR | os.O_CREAT, 0o644)
last = int.from_bytes(os.pread(fd, 8, 0), "little")
if len(sys.argv) > 1:
    model = bytearray()
    for number in range(1, last + 1):
        length, stores = steps(number)
        del model[length:]
        model.extend(bytes(length - len(model)))
        for place, (_, at, count) in enumerate(stores):
            model[at : at + count] = bytes([content(number, place)]) * count
        model[0:8] = number.to_bytes(8, "little")
    size = os.fstat(fd).st_size
    assert os.pread(fd, size + 1, 0) == model, f"the file is not what it was after {last}"
    print(last)
    sys.exit()
print(os.getpid(), flush=True)
first = None
while True:
    last += 1
    length, stores = steps(last)
    if length != os.fstat(fd).st_size:
        if first is not None:
            first.close()
        os.ftruncate(fd, length)
        first = None
    if first is None:
        first = mmap.mmap(fd, length)
    for place, (way, at, count) in enumerate(stores):
        what = bytes([content(last, place)]) * count
        if way == "store":
            first[at : at + count] = what
        elif way == "other":
            with mmap.mmap(fd, length) as other:
                other[at : at + count] = what
        elif way == "call":
            assert os.pwrite(fd, what, at) == count
        else:
            child = os.fork()
            if child == 0:
                first[at : at + count] = what
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    first[0:8] = last.to_bytes(8, "little")
    if last % 3:
        first.flush()
    else:
        os.fsync(fd)
    print(last, flush=True)
