"""The HTTP application: all routes and the middleware around them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response

import headwise
from headwise.errors import HeadwiseError, RefusalKind, RequestRefused
from headwise.language import language
from headwise.server import metrics as numbers
from headwise.server.auth import Auth, is_local
from headwise.server.engine import Engine
from headwise.server.limits import Limits
from headwise.server.observing import Observed
from headwise.server.packing import Packing
from headwise.server.protocols import PROTOCOLS
from headwise.server.protocols.routes import Route
from headwise.server.routes import pages, tasks
from headwise.server.routes.openapi import describe
from headwise.server.routes.refusal import Refusals, refusal
from headwise.server.settings import Settings
from headwise.server.watching import Watching

Endpoint = Callable[[Request], Awaitable[Response]]


def create(
    engine: Engine,
    settings: Settings | None = None,
    metrics: numbers.Metrics | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> FastAPI:
    """Make the application that serves `engine` over HTTP: plain routes, protocols, health, metrics and pages.

    Args:
        metrics: the `Metrics` that count the requests. The caller adds the metrics of the engine (`tell_engine`).
        stopping: returns whether the server is about to stop.
    """
    settings = settings or Settings()
    metrics = metrics or numbers.Metrics()
    engine = Observed(engine, stopping)
    app = FastAPI(title="headwise", version=headwise.__version__, openapi_url=None, redirect_slashes=False)
    protocols: dict[str, str] = {}  # title -> path
    replies: dict[str, Callable[[BaseException], Response]] = {}
    for protocol in PROTOCOLS.values():
        if (router := protocol.router(engine)) is not None:
            app.include_router(router, tags=[protocol.title])
            protocols[protocol.title] = router.prefix
            if issubclass(router.route_class, Route):
                replies[router.prefix] = router.route_class.reply
    refuse = Refusals(replies)

    def get(path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a route that answers GET and HEAD. The OpenAPI description lists it if `described` has a summary."""

        def add(endpoint: Endpoint) -> Endpoint:
            shown = "summary" in described
            app.add_api_route(path, endpoint, methods=["GET"], tags=["server"], include_in_schema=shown, **described)
            app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
            return endpoint

        return add

    @get("/livez", summary="Whether the process works", **_text({200: "It works.", 503: "It does not work."}))
    async def live(_: Request) -> Response:
        return _health(engine.live, "live")

    @get("/readyz", summary="Whether every model can answer", **_text({200: "They can.", 503: "They cannot (yet)."}))
    async def ready(_: Request) -> Response:
        return _health(engine.ready, "ready")

    @get("/metrics", summary="Metrics for Prometheus", **_text({200: "Prometheus's text format."}))
    async def show_metrics(_: Request) -> Response:
        return Response(metrics.text(), media_type=numbers.CONTENT_TYPE)

    @get("/openapi.json")
    async def openapi(_: Request) -> Response:
        return JSONResponse(describe(app, engine, token=settings.token is not None))

    @get("/")
    async def index(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("docs", 303)
        return JSONResponse(pages.index(engine, str(request.base_url), protocols, token=settings.token is not None))

    @get("/docs")
    async def docs(_: Request) -> Response:
        page, policy = pages.docs(language())
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})

    @app.post("/explain", include_in_schema=False)
    async def explain(request: Request) -> Response:
        return await tasks.explain(request, engine)

    app.add_exception_handler(HeadwiseError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refuse_route)
    # The last middleware added is the outermost.
    app.add_middleware(tasks.TaskRoutes, engine=engine, others=app.routes)
    app.add_middleware(Packing)
    app.add_middleware(Limits, most=settings.max_body, patience=settings.timeout, refuse=refuse)
    app.add_middleware(Auth, token=settings.token, local=is_local(settings.host), refuse=refuse)
    app.add_middleware(Watching, metrics=metrics, stopping=stopping)
    return app


def _text(answers: Mapping[int, str]) -> dict[str, Any]:
    """Return the OpenAPI description of a route that answers in plain text; `answers`: status -> description."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    responses = {status: {"description": says, "content": content} for status, says in answers.items()}
    return {"responses": responses, "response_class": PlainTextResponse}


def _health(well: bool, word: str) -> Response:
    return PlainTextResponse(word if well else f"not {word}", 200 if well else 503)


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    where = {str(each["loc"][-1]) for each in error.errors() if each.get("loc")}
    return refusal(RequestRefused("bad_input", f"invalid value: {', '.join(sorted(where))}"))


async def _refuse_route(_: Request, error: Exception) -> Response:
    """Return the response for an unknown route or a wrong method."""
    assert isinstance(error, HTTPException)
    sentences: dict[int, Any] = {
        404: "this path does not exist; GET / lists the routes",
        405: f"this path expects another method: {(error.headers or {}).get('Allow', '')}",
    }
    kind: RefusalKind = "not_found" if error.status_code == 404 else "bad_input"
    response = refusal(RequestRefused(kind, sentences.get(error.status_code, str(error.detail))), error.status_code)
    response.headers.update(error.headers or {})
    return response
