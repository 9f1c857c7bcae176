"""Run as a script: what exported programs and packages compute in a process that has PyTorch and no headwise.

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
    """A function of tensors: of an AOTInductor package, or of a program that `torch.export.save` wrote."""
    return torch._inductor.aoti_load_package(file) if package else torch.export.load(file).module()


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs, of which a single one may stand by itself."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


if __name__ == "__main__":
    main(*sys.argv[1:])
