"""The Python programs of the book and of the package's README. The blocks of one page are one program.

A block that needs another package, as ```` ```python,needs-torch ````, is left out where that is not installed.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def programs() -> "list[tuple[str, str]]":
    found = []
    for page in [*sorted((ROOT / "book/src").rglob("*.md")), ROOT / "crates/untorn-python/README.md"]:
        blocks = re.findall(r"^```python(?:,needs-(\w+))?$(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        program = "".join(code for needs, code in blocks if not needs or importlib.util.find_spec(needs))
        if program:
            found.append((str(page.relative_to(ROOT)), program))
    return found


def test_the_book_has_programs() -> None:
    assert any(page.startswith("book/") for page, _ in programs())


@pytest.mark.parametrize(("page", "program"), programs())
def test_programs_of_a_page_run(page: str, program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, f"{page}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
