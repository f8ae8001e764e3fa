"""The Python programs of the book and of the package's README. The blocks of one page are one program."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def programs() -> "list[tuple[str, str]]":
    found = []
    for page in [*sorted((ROOT / "book/src").rglob("*.md")), ROOT / "crates/untorn-python/README.md"]:
        blocks = re.findall(r"^```python$(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        if blocks:
            found.append((str(page.relative_to(ROOT)), "".join(blocks)))
    return found


def test_the_book_has_programs() -> None:
    assert any(page.startswith("book/") for page, _ in programs())


@pytest.mark.parametrize(("page", "program"), programs())
def test_programs_of_a_page_run(page: str, program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, f"{page}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
