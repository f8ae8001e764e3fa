"""Says how each test in a JUnit file ended, one a line, in order. What failed with ENOTSUP was told no."""

import sys
import xml.etree.ElementTree

lines = []
for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
    ended = "ok"
    for kind in ("failure", "error"):
        for found in case.iter(kind):
            last = (found.text or "").strip().splitlines()[-1:]
            ended = "told no" if "[Errno 95]" in "".join(last) else "failed: " + "".join(last)
    if case.find("skipped") is not None or case.get("status") == "skipped":
        ended = "skipped"
    lines.append(f"{case.get('classname', '')}.{case.get('name')}: {ended}")
print("\n".join(sorted(lines)))
