"""Makes files, removes them and puts them over others, without a sync: with each write durable when it returns, a file is there with
all that was written to it, though nobody made its name durable, and by the name that it was given last. The kernel may pass one write
on in several requests, cut where a page begins, and a killed program sends the first ones. Goes on where an earlier one was killed. With
an argument: says the number of the last step that is all there, after a check of every file. A file that was removed may be back, with
all of it."""

import os
import random
import sys

from names import remove, there

# So many steps after it was made a file is removed.
LIVES = 5
# Names that are used again and again, for a new file each time: made there, or put over the one before.
SLOTS = 3


def writes(number, kind):
    """What is written to a file of a step, one write after the other."""
    draw = random.Random(f"{number} {kind}")
    return [bytes([number % 251]) * 8 + draw.randbytes(draw.randrange(1, 6000)) for _ in range(3)]


def content(number, kind):
    return b"".join(writes(number, kind))


def prefixes(number, kind):
    """What a file may hold that is being made."""
    all, whole = writes(number, kind), content(number, kind)
    return [b"".join(all[:count]) for count in range(len(all) + 1)] + [whole[:cut] for cut in range(0, len(whole), 4096)]


def make(name, number, kind):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    for bytes in writes(number, kind):
        assert os.write(fd, bytes) == len(bytes)
    os.close(fd)


def check():
    """The last step whose files are all there."""
    new = {int(name[4:]) for name in os.listdir() if name.startswith("new-")}
    assert all(name.startswith(("new-", "slot-", "over-")) or name == "next" for name in os.listdir()), f"other files: {os.listdir()}"
    whole = {number for number in new if there(f"new-{number}") == content(number, "new")}
    last = max(whole, default=0)
    under_way = last + 1
    for number in new - whole:
        assert number == under_way, f"new-{number} is not what was written, and {last} is the last step"
        assert there(f"new-{number}") in prefixes(number, "new"), f"new-{number} has what was never written"
    # The last of them may be about to be removed.
    for number in range(max(1, last - LIVES + 2), last + 1):
        assert number in whole, f"new-{number} is gone, and {last} is the last step"
    for slot in range(SLOTS):
        held = there(f"slot-{slot}")
        before = max((number for number in range(max(1, last - SLOTS), last + 1) if number % SLOTS == slot), default=None)
        allowed = [None if before is None else content(before, "slot")]
        if under_way % SLOTS == slot:
            allowed += [None, *prefixes(under_way, "slot")]
        assert held in allowed, f"slot-{slot} is not what it was at step {last}: {held and held[:8]}"
        held = there(f"over-{slot}")
        allowed = [None if before is None else content(before, "over")]
        if under_way % SLOTS == slot:
            allowed.append(content(under_way, "over"))
        assert held in allowed, f"over-{slot} is not what was put there by step {last}: {held and held[:8]}"
    assert there("next") in [None, *prefixes(under_way, "over")], f"a file of a step before {under_way} has its first name again"
    return last


if len(sys.argv) > 1:
    print(check())
    sys.exit()
print(os.getpid(), flush=True)
last = check()
# What a step that was cut short left.
remove(f"new-{last + 1}")
remove("next")
while True:
    last += 1
    slot = f"slot-{last % SLOTS}"
    remove(slot)
    make(slot, last, "slot")
    make("next", last, "over")
    os.rename("next", f"over-{last % SLOTS}")
    make(f"new-{last}", last, "new")
    remove(f"new-{last - LIVES}")
    print(last, flush=True)
