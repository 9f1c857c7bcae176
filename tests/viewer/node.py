"""The page's modules in node, without a browser: those that draw nothing. `js/` holds what node itself runs."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from headwise.viewer import blocks_of, facts_of, inputs_of
from headwise.viewer.inputs import Many
from tests.conftest import missing

Carried = tuple[dict[str, Any], dict[str, bytes]]

FOLDER = Path(__file__).parent / "js"
OLDEST = (18, 19)
SECONDS = 120


@functools.cache
def node() -> str | None:
    """The program, if it is new enough for `js/modules.mjs`."""
    program = shutil.which("node") or shutil.which("nodejs")
    if program is None:
        return None
    version = subprocess.run([program, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    return program if tuple(map(int, version.strip("v\n").split(".")[:2])) >= OLDEST else None


def run(script: str, given: str = "") -> str:
    """What a script of `js/` prints. Where there is no node the test is skipped, or fails in CI."""
    program = node()
    if program is None:
        missing(f"no node {'.'.join(map(str, OLDEST))} or newer here: scripts/install says how to get it")
    done = subprocess.run(
        [program, "--no-warnings", "--import", "./modules.mjs", script],
        cwd=FOLDER, input=given, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def carried(seen: Many) -> Carried:
    """The facts and the numbers of the page of records."""
    inputs = inputs_of(seen)
    facts = {**facts_of(inputs, title=""), "source": "embedded", "tolerance": 0}
    return facts, dict(blocks_of(inputs, facts))


def evaluate(code: str, given: Any = None, page: Carried | None = None) -> Any:
    """What some JavaScript returns: `js/evaluate.mjs` says what it is given."""
    told = None
    if page is not None:
        facts, blocks = page
        told = {"facts": facts, "blocks": {name: base64.b64encode(data).decode() for name, data in blocks.items()}}
    return json.loads(run("evaluate.mjs", json.dumps({"code": code, "given": given, "page": told})))
