"""Diagnoses as SARIF 2.1.0, which tools for code review read: GitHub shows each finding at its line."""

from __future__ import annotations

import hashlib
import linecache
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headwise.doctor.catalogue import CATALOGUE, Entry, links
from headwise.doctor.finding import Finding, Findings, Severity, Where

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL: dict[Severity, str] = {"bug": "error", "risk": "warning", "note": "note"}
_PROBLEM: dict[Severity, str] = {"bug": "error", "risk": "warning", "note": "recommendation"}  # GitHub's words
_ROOT = "%SRCROOT%"


def sarif(diagnoses: Iterable[Findings], *, version: str, root: Path | None = None) -> dict[str, Any]:
    """The diagnoses as one run of this version of headwise.

    Files are given relative to `root`, which is to be the repository's, since a code host finds them by these names; by
    default it is the working directory. A finding without a line stands at its class.
    """
    root, diagnoses = (root or Path.cwd()).resolve(), list(diagnoses)
    found = [(diagnosis, finding) for diagnosis in diagnoses for finding in diagnosis.findings]
    names = list(dict.fromkeys(finding.name for _, finding in found))
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "headwise doctor",
                        "version": version,
                        "semanticVersion": version,
                        "rules": [_rule(name) for name in names],
                    }
                },
                "columnKind": "unicodeCodePoints",
                # For an editor, which knows no checkout.
                "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri().rstrip('/')}/"}},
                "invocations": [_invocation(diagnoses)],
                "results": _results(found, names, root),
            }
        ],
    }


def _invocation(diagnoses: Sequence[Findings]) -> dict[str, Any]:
    """Whether everything was examined, and what was not."""
    missed = [f"{x.subject} was not examined: {x.not_examined}" for x in diagnoses if x.not_examined]
    notifications = [{"level": "error", "message": {"text": text}} for text in missed]
    return {"executionSuccessful": not missed, "toolExecutionNotifications": notifications}


def _rule(name: str) -> dict[str, Any]:
    entry = CATALOGUE.get(name) or Entry(name, "bug", name)
    threads = [(text, address) for source in entry.sources for text, address in links(source)]
    seen = ", ".join(text for text, _ in threads)
    linked = ", ".join(f"[{text}]({address})" if address else text for text, address in threads)
    rule: dict[str, Any] = {
        "id": name,
        "name": "".join(word.capitalize() for word in name.split("-")),
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": f"{entry.title}."},
        "help": {
            "text": f"{entry.title}." + (f" Seen in: {seen}." if seen else ""),
            "markdown": f"{entry.title}." + (f" Seen in: {linked}." if linked else ""),
        },
        "defaultConfiguration": {"level": _LEVEL[entry.severity]},
        "properties": {
            "tags": ["attention", "correctness"],
            "precision": "high",
            "problem.severity": _PROBLEM[entry.severity],
        },
    }
    if address := next((address for _, address in threads if address), None):
        rule["helpUri"] = address
    return rule


def _results(found: Sequence[tuple[Findings, Finding]], names: Sequence[str], root: Path) -> list[dict[str, Any]]:
    results = []
    times: Counter[tuple[str, str]] = Counter()
    for diagnosis, finding in found:
        location = _location(finding.where or diagnosis.where or Where(".", 1), root)
        # Of the line's code, not of its number: what stays when lines above it come and go.
        seen = "\0".join((finding.name, diagnosis.subject, finding.where.code if finding.where else ""))
        fingerprint = hashlib.sha256(seen.encode()).hexdigest()[:16]
        # Equal lines of a file are told apart by their order.
        times[key := (location["physicalLocation"]["artifactLocation"]["uri"], fingerprint)] += 1
        results.append(
            {
                "ruleId": finding.name,
                "ruleIndex": names.index(finding.name),
                "level": _LEVEL[finding.severity],
                "message": {
                    "text": f"{diagnosis.subject}: {_sentence(finding.evidence)} Fix: {_sentence(finding.fix)}"
                },
                "locations": [location],
                "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint}:{times[key]}"},
            }
        )
    return results


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _location(where: Where, root: Path) -> dict[str, Any]:
    path = (Path.cwd() / where.file).resolve()
    line = max(where.line, 1)
    text = linecache.getline(str(path), line).rstrip("\n")
    if text.strip() != where.code:  # the file has changed since, or is not here
        text = where.code
    region: dict[str, Any] = {
        "startLine": line,
        "startColumn": len(text) - len(text.lstrip()) + 1,
        "endLine": line,
        "endColumn": len(text) + 1,
    }
    if where.code:
        region["snippet"] = {"text": where.code}
    if path.is_relative_to(root):
        artifact = {"uri": quote(path.relative_to(root).as_posix()), "uriBaseId": _ROOT}
    else:
        artifact = {"uri": path.as_uri()}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
