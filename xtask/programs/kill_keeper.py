"""Syncs its directory, again and again, after all that may happen in it: a file of the same name is removed and made anew, another is put
over one, a directory is made and one removed. What a sync of the directory was to make durable is there. Goes on where an earlier one
was killed. With an argument: says the number of the last step that is all there, after a check of everything."""

import os
import random
import sys

from names import remove, there

# In each of so many steps one makes a directory.
EACH = 9


def content(number, kind):
    draw = random.Random(f"{number} {kind}")
    return bytes([number % 251]) * 8 + draw.randbytes(draw.randrange(1, 6000))


def make(name, bytes):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    assert os.write(fd, bytes) == len(bytes)
    os.fsync(fd)
    os.close(fd)


def sync(directory=os.open(".", os.O_RDONLY | os.O_DIRECTORY)):
    os.fsync(directory)


def step_of(bytes, kind, around):
    """The step that wrote this, one of those about another."""
    if bytes is None:
        return 0
    found = [number for number in around if content(number, kind) == bytes]
    assert found, f"{kind} is not what was written about step {around}: {bytes[:8]}"
    return found[0]


def check():
    """The last step of which all is there."""
    marks = {int(name[5:]) for name in os.listdir() if name.startswith("mark-")}
    assert all(name in ("journal", "data", "next") or name.startswith("mark-") for name in os.listdir()), f"other files: {os.listdir()}"
    bytes = there("data")
    if bytes is None:
        assert not marks, f"directories {marks} before the first step"
        return 0
    # The directories tell about which step it is.
    about = max(marks, default=0)
    around = range(max(1, about - EACH - 1), about + 2 * EACH + 2)
    last = step_of(bytes, "data", around)
    journal = there("journal")
    # One that is being made may have a part of it.
    under_way = content(last + 1, "journal")
    assert journal in (None, content(last, "journal")) or under_way.startswith(journal), "the journal is of another step"
    under_way = content(last + 1, "data")
    assert under_way.startswith(there("next") or b""), "a file that was put over another has its first name again"
    due = last - last % EACH
    before = {due - EACH} if due == last else set()
    if due and due not in marks:
        assert due == last, f"the directory of step {due} is gone, and {last} is the last step"
        last -= 1
    assert marks <= {due} | before, f"directories {marks} after step {last}"
    return last


if len(sys.argv) > 1:
    print(check())
    sys.exit()
print(os.getpid(), flush=True)
last = check()
# What a step that was cut short left.
remove("next")
while True:
    last += 1
    remove("journal")
    make("journal", content(last, "journal"))
    sync()
    make("next", content(last, "data"))
    os.rename("next", "data")
    sync()
    if last % EACH == 0:
        if not os.path.isdir(f"mark-{last}"):
            os.mkdir(f"mark-{last}")
        if os.path.isdir(f"mark-{last - EACH}"):
            os.rmdir(f"mark-{last - EACH}")
        sync()
    assert not os.path.exists("next")
    print(last, flush=True)
