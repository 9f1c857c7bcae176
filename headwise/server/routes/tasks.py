"""`POST /classify {"text": …}`: a plain route for each task, with rows as JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.engine import Engine
from headwise.server.interface import Description
from headwise.server.observing import current
from headwise.server.protocols.columns import check_count
from headwise.server.protocols.errors import bad_input
from headwise.server.protocols.routes import json_of
from headwise.server.routes.ask import Asked, read
from headwise.server.routes.events import events
from headwise.server.routes.refusal import refusal, told
from headwise.server.routes.rows import cells_of, make_row, plain
from headwise.tasks.columns import Row


class TaskRoutes:
    """ASGI middleware that answers the plain routes of tasks. These routes change when models are loaded or unloaded.

    It runs before the router, which would compare the path with every other route: several times the work of an answer.

    Args:
        others: the routes of the application; a task whose path is one of theirs has no plain route.
    """

    def __init__(self, app: ASGIApp, *, engine: Engine, others: Sequence[BaseRoute]) -> None:
        self._app, self._engine, self._others = app, engine, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path[1:] not in routes(self._engine) or self._is_taken(path):
            await self._app(scope, receive, send)
            return
        if (noted := current.get()) is not None:
            noted.route = path
        if scope["method"] != "POST":
            response: Response = refusal(bad_input("this path expects another method: POST"), 405)
            response.headers["Allow"] = "POST"
        else:
            try:
                response = await answer(Request(scope, receive), self._engine, path[1:])
            except HeadwiseError as error:
                response = refusal(error)
        await response(scope, receive, send)

    @lru_cache(maxsize=64)  # noqa: B019 (as long as the application)
    def _is_taken(self, path: str) -> bool:
        asked = {"type": "http", "path": path, "method": "POST", "headers": []}
        return any(route.matches(asked)[0] is not Match.NONE for route in self._others)


def routes(engine: Engine) -> list[str]:
    """Return the names of the tasks of the loaded models; each has a route."""
    return sorted({served.description.task for served in engine.models()})


async def answer(request: Request, engine: Engine, task: str) -> Response:
    """Return the response of a task's plain route: the answer to one row, or {"rows": […]} for several rows.

    With several rows the list has an answer or an error for each row.

    Raises:
        HeadwiseError: an error in the whole request, or in its only row.
    """
    candidates = [served for served in engine.models() if served.description.task == task]
    asked = await read(request, engine, candidates, f"models of the task {task}")
    served = asked.served
    if asked.stream:
        if not served.description.streams:
            raise bad_input(f"{served.name} cannot stream text. Leave 'stream' out")
        if asked.several:
            raise bad_input("'stream': expected one row. Several rows cannot be streamed")
        return await events(engine.stream(served.name, served.version, asked.row()), served.description.written)
    if asked.several:
        return JSONResponse({"rows": await _each(engine, asked)})
    (answered,) = await engine.answer(served.name, served.version, [asked.row()])
    if isinstance(answered, HeadwiseError):
        raise answered
    return JSONResponse(cells_of(answered, served.description))


async def explain(request: Request, engine: Engine) -> Response:
    """Return the attention statistics of one row; with ?page=true (or Accept: text/html) the page of its attention.

    With ?rows=0,-1: the answer, and the weights with which these tokens (by number) attend.
    """
    candidates = [served for served in engine.models() if served.description.explains]
    if not candidates:
        raise RequestRefused(
            "not_found",
            "no loaded model can explain its answers: an ONNX export records no attention. Serve the run folder of "
            "headwise train instead",
        )
    asked = await read(request, engine, candidates, "models that explain", "page", "rows")
    if asked.several or asked.stream:
        raise bad_input("expected the columns of one row: only a single row can be explained")
    page = request.query_params.get("page")
    if page not in (None, "true", "false"):
        raise bad_input("?page=: expected true or false")
    wanted = page == "true" if page is not None else "text/html" in request.headers.get("accept", "")
    served, places = asked.served, request.query_params.get("rows")
    if places is not None:
        if page == "true":
            raise bad_input("?page= and ?rows=: expected one of them")
        found = await engine.explain(served.name, served.version, asked.row(), rows=_places(places))
        assert isinstance(found, dict)
        return json_of({**found, "answer": cells_of(found["answer"], served.description)})
    told_ = await engine.explain(served.name, served.version, asked.row(), page=wanted)
    return HTMLResponse(told_) if isinstance(told_, str) else JSONResponse(plain(told_))


def _places(given: str) -> list[int]:
    try:
        return [int(place) for place in given.split(",")]
    except ValueError:
        raise bad_input("?rows=: expected numbers of tokens from 0, such as 0,-1") from None


async def _each(engine: Engine, asked: Asked) -> list[dict[str, object]]:
    """Return the answers to several rows as JSON data; an invalid row gets its error, and the others are answered."""
    check_count(len(asked.cells))
    description = asked.served.description
    found = [_read(cells, description) for cells in asked.cells]
    rows = [row for row in found if not isinstance(row, HeadwiseError)]
    answers = iter(await engine.answer(asked.served.name, asked.served.version, rows) if rows else ())
    whole = [row if isinstance(row, HeadwiseError) else next(answers) for row in found]
    return [told(each) if isinstance(each, HeadwiseError) else cells_of(each, description) for each in whole]


def _read(cells: object, description: Description) -> Row | RequestRefused:
    try:
        return make_row(cells, description)
    except RequestRefused as error:
        return error
