"""A script that runs exported programs and packages in a process with PyTorch and without headwise.

    python alone.py request.pt answer.pt

The request is a list of {"file", "package", "examples"}; the answer has, for each, a list of tuples of outputs.
"""

from __future__ import annotations

import sys
from typing import Any

if __name__ == "__main__":
    del sys.path[0]  # this folder
    sys.modules["headwise"] = None  # type: ignore[assignment]  # importing it fails

import torch


def main(request: str, answer: str) -> None:
    """Run each file on its examples."""
    found = []
    for asked in torch.load(request, weights_only=True):
        run = load(asked["file"], package=asked["package"])
        with torch.no_grad():
            found.append([as_tuple(run(*example)) for example in asked["examples"]])
    torch.save(found, answer)


def load(file: str, *, package: bool) -> Any:
    """The function in an AOTInductor package, or in a program written by `torch.export.save`."""
    return torch._inductor.aoti_load_package(file) if package else torch.export.load(file).module()


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs as a tuple, also if there is only one."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


if __name__ == "__main__":
    main(*sys.argv[1:])
