"""Parses a request to a plain route: finds the model and the rows in the query and the body."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from headwise.errors import RequestRefused, brief
from headwise.server.engine import Engine, Served
from headwise.server.protocols.errors import bad_input
from headwise.server.routes.rows import make_row, read_object
from headwise.tasks.columns import Row


@dataclass(frozen=True)
class Asked:
    """A parsed request to a plain route.

    Args:
        cells: the rows as received.
        several: whether they were sent as {"rows": […]}; the answer then has the same form.
        stream: whether the text is to be streamed piece by piece.
    """

    served: Served
    cells: list[Any]
    several: bool
    stream: bool

    def row(self) -> Row:
        """Return the row of a request that has only one."""
        return make_row(self.cells[0], self.served.description)


async def read(request: Request, engine: Engine, candidates: Iterable[Served], what: str, *parameters: str) -> Asked:
    """Parse a request to a plain route, for one of the models `candidates`.

    `what` describes these models in errors, such as "models that classify". `parameters` are the query parameters that
    are allowed besides "model" and "version".

    The key "model" may be in the query, or in the body beside the columns. The key "stream" may be in the body. If a
    column has one of these names, the key in the body means the column.

    Raises:
        RequestRefused: "bad_input", "not_found".
    """
    known = ("model", "version", *parameters)
    if unknown := [name for name in request.query_params if name not in known]:
        expected = ", ".join(f"?{name}=" for name in known)
        raise bad_input(f"unknown parameter: expected {expected}. Received: {brief(unknown[0], 40)}")
    body = read_object(await request.body())
    candidates = list(candidates)
    columns = {column.name for served in candidates for column in served.description.inputs}
    name = request.query_params.get("model")
    if "model" in body and "model" not in columns:
        named = body.pop("model")
        if not isinstance(named, str):
            raise bad_input("'model': expected the name of a model")
        if name is not None and name != named:
            raise bad_input("the query and the body name different models")
        name = named
    served = choose(engine, candidates, name, request.query_params.get("version"), what)
    stream = "text/event-stream" in request.headers.get("accept", "")
    if "stream" in body and "stream" not in columns:
        stream = body.pop("stream")
        if not isinstance(stream, bool):
            raise bad_input("'stream': expected true or false")
    if "rows" not in body or "rows" in columns:
        return Asked(served, [body], False, stream)
    rows = body.pop("rows")
    if not isinstance(rows, list) or not rows:
        raise bad_input("'rows': expected a list with at least one row")
    if body:
        raise bad_input("expected either the columns of one row, or only 'rows'")
    return Asked(served, rows, True, stream)


def choose(engine: Engine, candidates: list[Served], name: str | None, version: str | None, what: str) -> Served:
    """Choose the model with this name; without a name, the only candidate. Raises like `read`."""
    names = sorted({served.name for served in candidates})
    if name is None:
        if len(names) > 1:
            raise bad_input(f'there are several {what}. Add "model" or ?model= with one of {", ".join(names)}')
        name = names[0]
    elif name not in names:
        is_there = any(served.name == name for served in engine.models())
        received = f"{name!r}, another kind of model" if is_there else "another name"
        raise RequestRefused("not_found", f"{what}: expected one of {', '.join(names)}. Received: {received}")
    return engine.find(name, version)
