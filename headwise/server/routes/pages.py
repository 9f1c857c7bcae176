"""Pages for users: the index, and the page /docs, which sends requests only to this server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from headwise.language import said
from headwise.server.engine import Engine, Served
from headwise.server.routes.rows import plain


@cache
def docs(spoken: str) -> tuple[str, str]:
    """Return the page /docs in the language in use, `spoken`, and its content security policy.

    The policy allows only the page's own scripts and styles, and requests to this server.
    """
    text = Path(__file__).with_name("docs.html").read_text(encoding="utf-8").replace("{{lang}}", spoken)
    page = re.sub(r"\{\{(.+?)\}\}", lambda found: said(found[1]), text)
    policy = (
        f"default-src 'none'; script-src {_hashes(page, 'script')}; style-src {_hashes(page, 'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hashes(page: str, tag: str) -> str:
    parts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'" for part in parts)


def index(engine: Engine, address: str, protocols: Mapping[str, str], *, token: bool) -> dict[str, Any]:
    """Return the content of the index page: the loaded models with a shell command for each, and the routes.

    Args:
        address: the address of this server.
        protocols: the path of each protocol, by its title.
        token: whether requests need a token.
    """
    address = address.rstrip("/")
    bearer = ' -H "Authorization: Bearer $HEADWISE_TOKEN"' if token else ""
    models = []
    names: dict[str, set[str]] = {}
    for served in engine.models():
        names.setdefault(served.description.task, set()).add(served.name)
    for served in engine.models():
        several = len(names[served.description.task]) > 1
        models.append(_model(served, address, bearer, several))
    return {
        "models": models,
        "routes": {
            "docs": f"{address}/docs",
            "openapi": f"{address}/openapi.json",
            "explain": f"{address}/explain",
            **{title.lower(): f"{address}{path}" for title, path in protocols.items()},
            "live": f"{address}/livez",
            "ready": f"{address}/readyz",
            "metrics": f"{address}/metrics",
        },
    }


def _model(served: Served, address: str, bearer: str, several: bool) -> dict[str, Any]:
    description = served.description
    row = plain(description.example or {})
    if several:
        row["model"] = served.name
    curl = f"curl{bearer} {address}/{description.task} -d {shlex.quote(json.dumps(row, ensure_ascii=False))}"
    return {
        "name": served.name,
        "version": served.version,
        "task": description.task,
        "platform": description.platform,
        "ready": served.ready,
        "takes": [column.name for column in description.inputs],
        "gives": [column.name for column in description.outputs],
        "streams": description.streams,
        "explains": description.explains,
        "try": curl,
    }
