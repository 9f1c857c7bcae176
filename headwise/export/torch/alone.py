"""A script that runs exported programs and packages in a process with PyTorch, but without headwise.

    python alone.py request.pt answer.pt

The request is a list of dicts with "file", "package" and "examples"; the answer has for each a list of output tuples.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder
    sys.modules["headwise"] = None  # type: ignore[assignment]  # importing it fails

import torch


def main(request: str, answer: str) -> None:
    """Run each file on its examples: a package of AOTInductor, or a program that `torch.export.save` wrote."""
    found = []
    for asked in torch.load(request, weights_only=True):
        file = asked["file"]
        run = torch._inductor.aoti_load_package(file) if asked["package"] else torch.export.load(file).module()
        with torch.no_grad():
            outputs = [run(*example) for example in asked["examples"]]
        found.append([tuple(each) if isinstance(each, tuple | list) else (each,) for each in outputs])
    torch.save(found, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
