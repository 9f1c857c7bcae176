"""The HTTP application: all routes and the middleware around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

import headwise
from headwise.errors import HeadwiseError, RefusalKind, RequestRefused
from headwise.server import metrics as numbers
from headwise.server.auth import Auth, is_local
from headwise.server.engine import Engine
from headwise.server.limits import Limits
from headwise.server.observing import Observed, current
from headwise.server.protocols import open_inference_http, tensorflow_rest
from headwise.server.routes import pages, tasks
from headwise.server.routes.openapi import describe
from headwise.server.routes.refusal import refusal
from headwise.server.settings import Settings
from headwise.server.watching import Watching

Endpoint = Callable[[Request], Awaitable[Response]]


def create(
    engine: Engine,
    settings: Settings | None = None,
    metrics: numbers.Metrics | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """The application that serves `engine` over HTTP: plain routes, both protocols, health, metrics and pages.

    Args:
        metrics: where requests are counted. The caller adds the metrics of the engine (`tell_engine`).
        stopping: returns whether the server is about to stop.
    """
    settings = settings or Settings()
    metrics = metrics or numbers.Metrics()
    engine = Observed(engine, settings.timeout, stopping)
    app = FastAPI(title="headwise", version=headwise.__version__, openapi_url=None, redirect_slashes=False)
    app.include_router(open_inference_http.router(engine))
    app.include_router(tensorflow_rest.router(engine))

    async def live(_: Request) -> Response:
        return _health(engine.live, "live")

    async def ready(_: Request) -> Response:
        return _health(engine.ready, "ready")

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=numbers.CONTENT_TYPE)

    async def openapi(_: Request) -> Response:
        return JSONResponse(describe(app, engine, token=settings.token is not None))

    async def index(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("docs", 303)
        return JSONResponse(pages.index(engine, str(request.base_url), token=settings.token is not None))

    async def docs(_: Request) -> Response:
        return HTMLResponse(pages.DOCS, headers={"Content-Security-Policy": pages.POLICY})

    async def explain(request: Request) -> Response:
        return await tasks.explain(request, engine)

    async def task(request: Request) -> Response:
        path = request.url.path
        name = request.path_params["task"]
        if path not in methods and name not in tasks.routes(engine):
            raise HTTPException(404)
        _note_route(path)
        method = methods.get(path, "POST")
        if path in methods or request.method != method:
            raise HTTPException(405, headers={"Allow": method})
        return await tasks.answer(request, engine, name)

    fixed: dict[str, tuple[str, Endpoint]] = {
        "/": ("GET", index),
        "/docs": ("GET", docs),
        "/openapi.json": ("GET", openapi),
        "/livez": ("GET", live),
        "/readyz": ("GET", ready),
        "/metrics": ("GET", show_metrics),
        "/explain": ("POST", explain),
    }
    methods = {"/v2": "GET"} | {path: method for path, (method, _) in fixed.items()}
    for path, (method, endpoint) in fixed.items():
        app.router.add_route(path, _noting(path, endpoint), methods=[method])
    # Last, and for every method: the tasks change when models are loaded or unloaded.
    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
    app.router.add_route("/{task}", task, methods=every)

    app.add_exception_handler(HeadwiseError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_router)
    # The last middleware added is the outermost.
    app.add_middleware(Limits, most=settings.max_body, patience=settings.timeout)
    app.add_middleware(Auth, token=settings.token, local=is_local(settings.host))
    app.add_middleware(Watching, metrics=metrics, stopping=stopping)
    return app


def _noting(route: str, endpoint: Endpoint) -> Endpoint:
    async def noting(request: Request) -> Response:
        _note_route(route)
        return await endpoint(request)

    return noting


def _note_route(route: str) -> None:
    if (noted := current.get()) is not None:
        noted.route = route


def _health(well: bool, word: str) -> Response:
    return PlainTextResponse(word if well else f"not {word}", 200 if well else 503)


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    where = {str(each["loc"][-1]) for each in error.errors() if each.get("loc")}
    return refusal(RequestRefused("bad_input", f"invalid value: {', '.join(sorted(where))}"))


async def _of_router(_: Request, error: Exception) -> Response:
    """The answer for an unknown route or a wrong method."""
    assert isinstance(error, HTTPException)
    sentences: dict[int, Any] = {
        404: "this path does not exist; GET / lists the routes",
        405: f"this path expects another method: {(error.headers or {}).get('Allow', '')}",
    }
    kind: RefusalKind = "not_found" if error.status_code == 404 else "bad_input"
    response = refusal(RequestRefused(kind, sentences.get(error.status_code, str(error.detail))), error.status_code)
    response.headers.update(error.headers or {})
    return response
