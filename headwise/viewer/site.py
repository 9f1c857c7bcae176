"""The ASGI application of the live server: it responds with the page, and with the numbers that the page requests.

    GET  /TOKEN/        the page
    GET  /TOKEN/tile?input=0&stack=0&layer=3&head=5&rows=0-512&cols=0-512&height=48&width=48&how=max
                        float32, little-endian, [height, width]; NaN = forbidden
    POST /TOKEN/mix?input=0&stack=0&layer=3       float32 [Q] in the body -> float32 [K]
    GET  /TOKEN/terms?input=0&stack=0&layer=3&head=5&row=7        float64: `Answers.terms`
    GET  /TOKEN/stats?input=0&stack=0&layer=3     JSON
    POST /TOKEN/run        JSON, {"prompt": …, "edits": […], "position": …} -> the data of that run, as JSON

The last route is for a page with a model (`live.py`), whose other requests also name the run: tile?run=7&input=0&…

An error is JSON, {"error": a sentence for the reader}.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from headwise.errors import ArgumentError, HeadwiseError
from headwise.records import AttentionRecord
from headwise.records.tiles import GROUP
from headwise.viewer.answers import Answer, Answers, How, Numbers, Part, Question
from headwise.viewer.bundle import assemble, read
from headwise.viewer.changes import Asked, read_asked
from headwise.viewer.facts import QUICK_CELLS, facts_of
from headwise.viewer.inputs import Input
from headwise.viewer.live import Live
from headwise.viewer.page import page_of, policy
from headwise.viewer.shown import Shown
from headwise.viewer.statistics import cost
from headwise.viewer.turns import Turns

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

# Size of the cache of recent answers.
KEPT_BYTES = 2**28

# The largest size of a request to the model, in bytes: a long prompt in UTF-8 with JSON's escapes, and its edits.
ASKED_BYTES = 2**18

# The statistics of long layers are estimated: from this many rows or, for very long layers, from fewer rows, so that at
# most ESTIMATED_CELLS weights are computed, in some seconds.
ESTIMATED_ROWS, FEWEST_ROWS, ESTIMATED_CELLS = 256, 32, 2**28

# Sent with every answer. The page's own policy precedes it.
POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; {POLICY}",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Refused(Exception):  # noqa: N818 (a refusal, not a failure)
    """Raised to refuse a request; its text is the reason."""

    def __init__(self, status: int, why: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


class Guarded:
    """An application on `port` of 127.0.0.1 for one reader: it checks host, token and origin of each request."""

    # path after the token -> (HTTP method, function that responds)
    routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]]

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(16)
        self.url = f"http://127.0.0.1:{port}/{self.token}/"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.origins = {None, *(f"http://{host}" for host in self.hosts)}

    def stop(self) -> None:
        """Cancel all pending work."""

    def close(self) -> None:
        """Stop all work, and wait until the threads have ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            response = await self.answer(request)
        except ClientDisconnect:
            return
        except Refused as refusal:
            response = _error(refusal.status, refusal, refusal.headers)
        except HeadwiseError as error:
            response = _error(400, error)
        except Exception as error:
            await _send(_error(500, f"The server failed: {type(error).__name__}: {error}"), scope, receive, send)
            raise
        await _send(response, scope, receive, send)

    async def answer(self, request: Request) -> Response:
        """Check host, token and origin of a request; return the response of its route."""
        if request.headers.get("host", "").lower() not in self.hosts:
            raise Refused(421, "This server accepts only the address that it printed, on this machine.")
        token, *path = request.scope["path"].removeprefix("/").split("/", 1)
        if not secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            raise Refused(404, "Not found. Open the whole address that headwise printed, including its token.")
        if request.headers.get("origin") not in self.origins:
            raise Refused(403, "This server refuses requests from pages of other sites.")
        if not path:
            return RedirectResponse(f"/{self.token}/")
        if path[0] not in self.routes:
            raise Refused(404, f"Unknown path {path[0]!r}: expected {', '.join(filter(None, self.routes))}.")
        method, route = self.routes[path[0]]
        allowed = ["GET", "HEAD"] if method == "GET" else [method]
        if request.method not in allowed:
            why = f"Expected {' or '.join(allowed)}. Received: {request.method}"
            raise Refused(405, why, {"Allow": ", ".join(allowed)})
        return await route(request)


class Site(Guarded):
    """The application that serves a page: of inputs, or of a model and a prompt, and the numbers that it requests."""

    def __init__(
        self,
        inputs: Sequence[Input],
        *,
        title: str,
        port: int,
        made: str | None = None,
        live: Live | None = None,
        prompt: str = "",
    ) -> None:
        super().__init__(port)
        self.live, self.first = live, Shown("", inputs)
        facts = live.facts(Asked(prompt)) if live else facts_of(inputs, title=title, made=made, quick=True)
        self.page = "".join(page_of(facts))
        self.policy = f"{policy(assemble('page.js'), read('document.css'), embedded=False)}; {POLICY}"
        self.kept = Kept(KEPT_BYTES)
        self.runs = ThreadPoolExecutor(1, "headwise model")  # one run at a time; it starts with the first question
        self.tiles = Turns("headwise tiles", torch.get_num_threads())
        self.statistics = Turns("headwise statistics", 1)  # separate: the statistics of a layer cannot be interrupted
        self.routes = {
            "": ("GET", self.give_page),
            "tile": ("GET", self.give_tile),
            "mix": ("POST", self.give_mix),
            "terms": ("GET", self.give_terms),
            "stats": ("GET", self.give_statistics),
        }
        if live:
            self.routes["run"] = "POST", self.give_run

    def stop(self) -> None:
        """Cancel all pending work."""
        for turns in (self.tiles, self.statistics):
            turns.stop()
        self.runs.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Stop all work, and wait until the threads have ended."""
        for turns in (self.tiles, self.statistics):
            turns.close()
        self.runs.shutdown(cancel_futures=True)

    async def give_page(self, request: Request) -> Response:
        """Respond with the page, which has everything except the weights."""
        return HTMLResponse(self.page, headers={"Content-Security-Policy": self.policy})

    async def give_tile(self, request: Request) -> Response:
        """Respond with a tile: a part of a head's matrix, in the resolution in which the page draws it."""
        place, answers = self.layer(request)
        head, height, width = (_number(request, name) for name in ("head", "height", "width"))
        rows, cols = _range(request, "rows"), _range(request, "cols")
        asked = Question(head, rows, cols, height, width, cast(How, _value(request, "how")))
        answer = answers.tile(asked)
        data = self.kept.get((place, asked))
        if data is None:
            data = _bytes(await _waited_for(request, self.tiles.ask(answer)))
            self.kept.put((place, asked), data)
        return Response(data, media_type="application/octet-stream")

    async def give_mix(self, request: Request) -> Response:
        """Respond with the sum of the rows of a layer, weighted by the numbers in the body."""
        _, answers = self.layer(request)
        size = 4 * answers.record.shape[2]
        body = await _body(request, size, f"mix: expected {size} bytes, a float32 for each row. Received: more")
        if len(body) != size:
            raise ArgumentError(f"mix: expected {size} bytes, a float32 for each row. Received: {len(body)}")
        numbers = await _waited_for(request, self.tiles.ask(answers.mix(np.frombuffer(body, "<f4"))))
        return Response(_bytes(numbers), media_type="application/octet-stream")

    async def give_terms(self, request: Request) -> Response:
        """Respond with all numbers from which the weights of a row of a head are computed."""
        _, answers = self.layer(request)
        _, heads, q_len, _ = answers.record.shape
        head, row = read_place(request, "head", heads), read_place(request, "row", q_len)
        numbers = await _waited_for(request, self.tiles.ask(answers.terms(head, row)))
        return Response(numbers.astype("<f8").tobytes(), media_type="application/octet-stream")

    async def give_statistics(self, request: Request) -> Response:
        """Respond with the statistics of the heads of a layer; for long inputs estimated from some rows."""
        _, answers = self.layer(request)
        shown, record, example = self.shown(request), answers.record, answers.example
        rows = count_rows(record) if cost(record) > QUICK_CELLS else None

        def part() -> Part:
            shown.statistics(record, example, rows)
            yield

        asked = Answer([part()], lambda: shown.statistics(record, example, rows), cost(record))
        numbers = await _waited_for(request, self.statistics.ask(asked))
        return JSONResponse({**numbers, "estimated": rows})

    async def give_run(self, request: Request) -> Response:
        """Run the model as the request says; respond with the facts (JSON data) of the run."""
        assert self.live is not None
        body = await _body(request, ASKED_BYTES, f"run: expected at most {ASKED_BYTES:,} bytes. Received: more")
        asked = read_asked(bytes(body))
        try:
            run = self.runs.submit(self.live.facts, asked)
        except RuntimeError:  # it was shut down
            raise Refused(503, "The server was stopped.") from None
        return JSONResponse(await _waited_for(request, run))

    def shown(self, request: Request) -> Shown:
        """Return the inputs of the run that the request names; without a live model, the inputs of the page."""
        return self.live.shown(_value(request, "run")) if self.live else self.first

    def layer(self, request: Request) -> tuple[tuple[str, int, int, int], Answers]:
        """Find the layer of a request: (run and the indices of input, stack and layer; the `Answers` of this layer)."""
        shown = self.shown(request)
        number = read_place(request, "input", len(shown.inputs))
        stack = read_place(request, "stack", len(shown.inputs[number].stacks))
        place = number, stack, read_place(request, "layer", len(shown.inputs[number].stacks[stack].layers))
        return (shown.name, *place), shown.layer(place)


def count_rows(record: AttentionRecord) -> int:
    """Return the number of rows from which the statistics of a long record are estimated."""
    rows = max(FEWEST_ROWS, min(ESTIMATED_ROWS, ESTIMATED_CELLS * record.shape[2] // cost(record)))
    return rows // GROUP * GROUP  # whole groups: as many as are said


class Kept:
    """A cache of the responses used last, of at most `most` bytes; the responses unused for longest are dropped."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.answers: OrderedDict[Hashable, bytes] = OrderedDict()

    def get(self, asked: Hashable) -> bytes | None:
        """Return the cached response to a request, or None."""
        if asked in self.answers:
            self.answers.move_to_end(asked)
        return self.answers.get(asked)

    def put(self, asked: Hashable, answer: bytes) -> None:
        """Cache the response to a request."""
        self.size += len(answer) - len(self.answers.pop(asked, b""))
        self.answers[asked] = answer
        while self.size > self.most:
            self.size -= len(self.answers.popitem(last=False)[1])


async def _waited_for(request: Request, future: Future[T]) -> T:
    """Wait for the future and return its result; cancel the future if the client disconnects."""
    answer, gone = asyncio.wrap_future(future), asyncio.ensure_future(_gone(request))
    both: set[asyncio.Future[Any]] = {answer, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        if answer.cancelled():
            raise Refused(503, "The server was stopped.")
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _body(request: Request, most: int, why: str) -> bytearray:
    """Read the body of a request. More than `most` bytes are refused, with `why` as the reason."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise Refused(413, why)
    return body


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    await response(scope, receive, send)


def _error(status: int, why: object, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": str(why)}, status, headers)


def _bytes(numbers: Numbers) -> bytes:
    return numbers.astype("<f4").tobytes()


def _value(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise ArgumentError(
            f"expected {name}=… in the address. Received: {', '.join(request.query_params) or 'nothing'}"
        )
    return value


def _number(request: Request, name: str) -> int:
    value = _value(request, name)
    if not re.fullmatch(r"\d{1,9}", value, re.ASCII):
        raise ArgumentError(f"{name}: expected a whole number. Received: {value}")
    return int(value)


def read_place(request: Request, name: str, count: int) -> int:
    number = _number(request, name)
    if number >= count:
        raise ArgumentError(f"{name}: expected 0 to {count - 1}. Received: {number}")
    return number


def _range(request: Request, name: str) -> tuple[int, int]:
    value = _value(request, name)
    if not re.fullmatch(r"\d{1,9}-\d{1,9}", value, re.ASCII):
        raise ArgumentError(f"{name}: expected two whole numbers, first-past. Received: {value}")
    first, past = value.split("-")
    return int(first), int(past)
