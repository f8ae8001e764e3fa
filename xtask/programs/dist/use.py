"""A program as others write one, against the installed package of Python. Its argument is the version."""

import importlib.metadata
import os
import sys
import tempfile

import untorn

version = importlib.metadata.version("untorn")
if version != sys.argv[1]:
    sys.exit(f"the package is of version {version}, not {sys.argv[1]}")
if not untorn.__file__.startswith(sys.prefix):
    sys.exit(f"the package is not the installed one: {untorn.__file__}")
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "file")
    with untorn.open(path, "w+", 1 << 20) as file:
        with file.transaction() as both:
            both.write_at(0, b"left")
            both.write_at(8192, b"right")
    with untorn.map(path) as memory:
        view = memoryview(memory)
        assert bytes(view[:4]) == b"left" and bytes(view[8192:8197]) == b"right"
        view[0:4] = b"LEFT"
        view.release()
        memory.commit()
    with open(path, "rb") as plain:
        assert plain.read(4) == b"LEFT"
print(f"untorn {version}")
