"""Each test runs in a directory of its own."""

import doctest
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from hypothesis import settings

# The same cases in every run, so that none fails by chance for a change that is not to blame.
settings.register_profile("untorn", derandomize=os.environ.get("UNTORN_LONG") != "1", database=None)
settings.load_profile("untorn")


@pytest.fixture(autouse=True)
def directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cases(short: int, long: int) -> int:
    """How often a test repeats: in the gate, and with ``UNTORN_LONG=1``."""
    return long if os.environ.get("UNTORN_LONG") == "1" else short


def python(program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Another interpreter that runs a program."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(program: str, *arguments: str) -> str:
    """What another interpreter prints, which must end well."""
    child = python(program, *arguments)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, f"{child.returncode}\n{out}{err}"
    return out


def examples(module: object) -> int:
    """Runs the examples of a module's docstrings; returns how many."""
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert found.failed == 0
    return found.attempted
