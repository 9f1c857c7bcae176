"""Print what the watch makes of each style whose name contains an argument; with --write, make that the expectation."""

from __future__ import annotations

import sys
from collections import Counter

from tests.capture.styles import EXPECTED, OUTCOMES, STYLES, outcome

parts = [argument for argument in sys.argv[1:] if argument != "--write"]
count, lines = Counter[str](), []
for name, each in STYLES.items():
    if not parts or any(part in name for part in parts):
        found = outcome(each)
        count[found.kind] += 1
        print(f"{found.kind:<15}{each.group:<11}{name:<45} {found.detail}", flush=True)
        if found.kind not in ("exact", "not attention"):
            lines.append(f"{found.kind}: {name}: {found.reason}".rstrip(": "))
print(", ".join(f"{count[kind]} {kind}" for kind in OUTCOMES))
if "--write" in sys.argv and not parts:
    EXPECTED.write_text("\n".join(sorted(lines)) + "\n")
