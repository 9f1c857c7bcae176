"""Which line of the user's code an operation belongs to."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from headwise.doctor.finding import Where

_TORCH = os.path.dirname(torch.__file__) + os.sep
_READING = os.path.dirname(__file__) + os.sep  # frames of the tracer are between torch and its caller
_DOCTOR = os.path.dirname(os.path.dirname(__file__)) + os.sep  # frames of the doctor itself are not the user's code


def running_line() -> Where | None:
    """The line of the user's code that is running; a line of torch if there is no other."""
    frame: Any = sys._getframe(1)
    inner = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_DOCTOR) and not file.startswith(_READING):
            break
        if not file.startswith((_TORCH, _DOCTOR)) and not file.startswith("<"):
            return Where.at(file, frame.f_lineno)
        if inner is None and file.startswith(_TORCH) and "/nn/" in file:
            inner = Where.at(file, frame.f_lineno)
        frame = frame.f_back
    return inner
