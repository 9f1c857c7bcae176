"""What a law about scores says of a module."""

from __future__ import annotations

import importlib

from torch import nn

from headwise.doctor.calling.example import Example
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient


def found(law: str, module: nn.Module, *, example: Example | None = None) -> list[Finding]:
    """What one law finds in a module."""
    return list(importlib.import_module(f"headwise.doctor.laws.{law}").check(Patient(module, example=example)))


def one(law: str, module: nn.Module) -> Finding:
    """The only finding of a law."""
    findings = found(law, module)
    assert len(findings) == 1, findings
    return findings[0]
