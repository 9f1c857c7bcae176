"""Print what the watch makes of the models of libraries: `python -m tests.capture.libraries [library] [model]`."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter

import torch

from tests.capture.families.compare import VERDICTS, compare
from tests.capture.libraries.library import LIBRARIES, cases

warnings.simplefilter("ignore")
torch.set_num_threads(1)
only, name_part = (*sys.argv[1:], "", "")[:2]
for library, packages in LIBRARIES.items():
    if only and library != only:
        continue
    try:
        found = cases(library)
    except ImportError as error:
        print(f"{library}: not installed ({error}). pip install {packages}")
        continue
    total = Counter[str]()
    for name, make in found.items():
        if name_part not in name:
            continue
        try:
            torch.manual_seed(0)
            result = compare(*make())
        except Exception as error:
            print(
                f"{library:<15}{name:<45} ERROR {type(error).__name__}: {' '.join(str(error).split())[:200]}",
                flush=True,
            )
            if name_part:
                traceback.print_exc()
            continue
        count = result.count()
        total += count
        shown = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])
        print(f"{library:<15}{name:<45} {shown}{', OUTPUT CHANGED' if result.changed else ''}", flush=True)
        for finding in dict.fromkeys(f for f in result.findings if f.verdict not in ("exact", "bounded")):
            print(f"{'':<17}{finding.verdict}: {finding.module}: {finding.note[:230]}", flush=True)
        for other in result.other[:4]:
            print(f"{'':<17}also: {other[:200]}", flush=True)
    print(f"{library}: " + ", ".join(f"{total[verdict]} {verdict}" for verdict in VERDICTS))
