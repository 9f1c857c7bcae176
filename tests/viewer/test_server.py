"""The live server: it answers with the record's own weights, to nobody but its reader."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError, FileError
from headwise.records import AttentionRecord
from headwise.viewer import answers, facts_of, inputs_of, site
from headwise.viewer import shown as shown_module
from headwise.viewer.answers import Answer, Answers, Question
from headwise.viewer.heads import Head
from headwise.viewer.server import serve, serving
from headwise.viewer.site import Kept

from .conftest import CASES, HOSTILE, look, record

LONG = 20  # seconds after which a test that waits has failed


class Client:
    """A browser's part."""

    def __init__(self, url: str) -> None:
        self.url, parts = url, urlsplit(url)
        self.host, self.path = parts.netloc, parts.path
        self.connection = http.client.HTTPConnection(self.host, timeout=LONG)

    def ask(
        self, path: str = "", method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Status, headers and body of what stands under the token; of an absolute path without it."""
        target = path if path.startswith("/") else self.path + path
        self.connection.request(method, target, body, headers or {})
        answer = self.connection.getresponse()
        try:
            return answer.status, answer.headers, answer.read()
        finally:
            self.connection.close()

    def tile(self, **asked: Any) -> np.ndarray:
        asked = {**TILE, **asked}
        status, headers, body = self.ask(f"tile?{urlencode(asked)}")
        assert (status, headers["Content-Type"]) == (200, "application/octet-stream"), body
        return np.frombuffer(body, "<f4").reshape(int(asked["height"]), int(asked["width"]))

    def refusal(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, str]:
        status, _, answer = self.ask(path, method, body, headers)
        told = json.loads(answer)
        assert list(told) == ["error"]
        return status, told["error"]


TILE: dict[str, object] = {
    **{"input": 0, "stack": 0, "layer": 0, "head": 1, "rows": "0-9", "cols": "0-9"},
    **{"height": 9, "width": 9, "how": "max"},
}


@pytest.fixture(scope="module")
def shown() -> dict[str, AttentionRecord]:
    torch.manual_seed(1)
    return {name: CASES[name]() for name in ("a batch", "plain", "scale and softcap", "everything")}


@pytest.fixture(scope="module")
def everything(shown: dict[str, AttentionRecord]) -> Iterator[Client]:
    """A server of several records."""
    with serving(inputs_of(shown), title="Everything") as url:
        yield Client(url)


def first_input(shown: dict[str, AttentionRecord], name: str) -> int:
    return sum(each.shape[0] for each in list(shown.values())[: list(shown).index(name)])


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A server of two layers with two heads each over nine tokens."""
    with serving(inputs_of(look(record(mask=masks.causal()), record())), title="A page") as url:
        yield Client(url)


@pytest.fixture
def fresh() -> Iterator[Client]:
    """One that has not answered anything yet."""
    with serving(inputs_of(look(record(), record())), title="A page") as url:
        yield Client(url)


def test_every_weight_is_the_records(everything: Client, shown: dict[str, AttentionRecord]) -> None:
    """test_answers.py has every kind of record and of tile."""
    for name, seen in shown.items():
        batch, heads, rows, cols = seen.shape
        expected = seen.weights().masked_fill(seen.scores() == -torch.inf, torch.nan).numpy()
        place = {"rows": f"0-{rows}", "cols": f"0-{cols}", "height": rows, "width": cols}
        for b, head in itertools.product(range(batch), range(heads)):
            found = everything.tile(**place, input=first_input(shown, name) + b, head=head)
            np.testing.assert_allclose(found, expected[b, head], rtol=0, atol=1e-6)
    pooled = everything.tile(rows="1-9", cols="2-8", height=1, width=2, how="mean", input=first_input(shown, "plain"))
    cells = shown["plain"].weights()[0, 1, 1:9, 2:8]
    np.testing.assert_allclose(pooled, [[cells[:, :3].mean(), cells[:, 3:].mean()]], rtol=0, atol=1e-6)


def test_mix_adds_up_rows(everything: Client, shown: dict[str, AttentionRecord]) -> None:
    seen, shares = shown["plain"], torch.randn(9)
    status, headers, body = everything.ask(
        f"mix?input={first_input(shown, 'plain')}&stack=0&layer=0", "POST", shares.numpy().tobytes()
    )
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    found = torch.frombuffer(bytearray(body), dtype=torch.float32)
    torch.testing.assert_close(found, shares @ seen.weights()[0].mean(0))


def test_statistics_are_those_of_the_page(client: Client) -> None:
    _, _, page = client.ask()
    facts = json.loads(re.findall(r'id="facts">(.*?)</script>', page.decode())[0])
    layers = facts["inputs"][0]["stacks"][0]["layers"]
    for number, layer in enumerate(layers):
        status, headers, body = client.ask(f"stats?input=0&stack=0&layer={number}")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == {**layer["stats"], "estimated": None}
    assert set(layers[0]["stats"]) == {each["key"] for each in facts["statistics"]}


def test_statistics_of_long_inputs_are_estimated_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "QUICK_CELLS", 1e4)
    monkeypatch.setattr(site, "ESTIMATED_ROWS", 64)
    q = torch.randn(3, 2, 400, 8)
    seen = look(headwise.attention(q, q, q, mask=masks.causal(), record=True)[1])
    inputs = inputs_of(seen)
    exact = facts_of(inputs, title="")
    looked = []
    real = shown_module.compute_statistics

    def counted(*args: Any, **options: Any) -> Any:
        looked.append(options["rows"])
        return real(*args, **options)

    monkeypatch.setattr(shown_module, "compute_statistics", counted)
    with serving(inputs, title="") as url:
        client = Client(url)
        for example in range(3):
            found = json.loads(client.ask(f"stats?input={example}&stack=0&layer=0")[2])
            assert found.pop("estimated") == 64
            told = exact["inputs"][example]["stacks"][0]["layers"][0]["stats"]
            assert set(found) == set(told)
            for key in ("entropy", "distance", "keys_needed"):
                assert found[key] != told[key]
                assert found[key] == pytest.approx(told[key], rel=0.1)
    assert looked == [64]  # once for all examples of the batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": 1}, "input: expected 0 to 0. Received: 1"),
        ({"stack": 5}, "stack: expected 0 to 0. Received: 5"),
        ({"layer": 2}, "layer: expected 0 to 1. Received: 2"),
        ({"layer": -1}, "layer: expected a whole number. Received: -1"),
        ({"head": 2}, "head: expected 0 to 1. Received: 2"),
        ({"head": "x"}, "head: expected a whole number. Received: x"),
        ({"head": "٣"}, "head: expected a whole number. Received: ٣"),
        ({"head": 10**30}, f"head: expected a whole number. Received: {10**30}"),
        ({"rows": "0-10"}, "rows: expected first-past within 0-9. Received: 0-10"),
        ({"rows": "5"}, "rows: expected two whole numbers, first-past. Received: 5"),
        ({"cols": "3-3"}, "cols: expected first-past within 0-9. Received: 3-3"),
        ({"height": 10}, "height: expected 1 to 9, the number of rows. Received: 10"),
        ({"width": 0}, "width: expected 1 to 9, the number of cols. Received: 0"),
        ({"how": "least"}, "how: expected max, mean, sample. Received: least"),
    ],
)
def test_what_is_not_there_is_named(client: Client, change: dict[str, object], message: str) -> None:
    assert client.refusal(f"tile?{urlencode({**TILE, **change})}") == (400, message)


def test_what_is_missing_is_named(client: Client) -> None:
    expected = "expected head=… in the address. Received: input, stack, layer"
    assert client.refusal("tile?input=0&stack=0&layer=0") == (400, expected)
    assert client.refusal("stats") == (400, "expected input=… in the address. Received: nothing")


def test_the_terms_of_a_row_are_exact(everything: Client, shown: dict[str, AttentionRecord]) -> None:
    first, seen = first_input(shown, "scale and softcap"), shown["scale and softcap"]
    status, _, body = everything.ask(f"terms?input={first}&stack=0&layer=0&head=1&row=4")
    numbers = np.frombuffer(body, "<f8")
    assert status == 200
    np.testing.assert_array_equal(numbers[:4], [4, 2.0, 3.0, np.nan])
    np.testing.assert_array_equal(numbers[4:8], seen.q[0, 1, 4])
    np.testing.assert_array_equal(numbers[8:44].reshape(9, 4), seen.k[0, 1])
    np.testing.assert_array_equal(numbers[44:], [0.0] * 9 + [1.0] * 9)
    refusal = everything.refusal(f"terms?input={first}&stack=0&layer=0&head=1&row=9")
    assert refusal == (400, "row: expected 0 to 8. Received: 9")


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"", (400, "mix: expected 36 bytes, a float32 for each row. Received: 0")),
        (bytes(35), (400, "mix: expected 36 bytes, a float32 for each row. Received: 35")),
        (bytes(37), (413, "mix: expected 36 bytes, a float32 for each row. Received: more")),
        (b"\xff" * 36, (400, "mix: expected finite numbers. Received: NaN or inf among them")),
    ],
)
def test_mix_wants_a_number_for_each_row(client: Client, body: bytes, refusal: tuple[int, str]) -> None:
    assert client.refusal("mix?input=0&stack=0&layer=0", "POST", body) == refusal


def test_a_changed_record_refuses() -> None:
    q = torch.randn(1, 2, 9, 4)
    with serving(inputs_of(headwise.attention(q, q, q, record=True)[1]), title="") as url:
        client = Client(url)
        client.tile()
        q += 1
        status, message = client.refusal(f"tile?{urlencode(TILE)}")
        assert status == 400
        assert "changed in place" in message


def test_a_bug_is_told_without_a_blank_page(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Answers, asked: Question) -> Answer[Any]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Answers, "tile", broken)
    assert client.refusal(f"tile?{urlencode(TILE)}") == (500, "The server failed: ZeroDivisionError: oh")
    monkeypatch.undo()
    client.tile()


# Nobody else gets in.

PATHS = ["", f"tile?{urlencode(TILE)}", "tile", "nothing", "/", "/nothing/"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_strict_headers(client: Client, path: str) -> None:
    _, headers, _ = client.ask(path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Server" not in headers
    policy = headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert policy[-3:] == ["frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"]


def test_the_page_has_one_policy(client: Client) -> None:
    status, headers, body = client.ask()
    page = body.decode()
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = headers["Content-Security-Policy"].split("; ")
    (inside,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy[:-3] == inside.split("; ")
    assert "connect-src 'self'" in policy
    assert not re.search(r"unsafe|\*|https?:", headers["Content-Security-Policy"])
    assert '"source":"server"' in page
    assert 'type="text/plain"' not in page  # no numbers in it


@pytest.mark.parametrize("token", ["", "x", "%2e%2e", "\u00e9".encode().hex(), "A" * 22])
def test_without_the_token_there_is_nothing(client: Client, token: str) -> None:
    for path in ("", "tile?input=0", "stats"):
        status, message = client.refusal(f"/{token}/{path}")
        assert status == 404
        assert "token" in message
        assert client.path.strip("/") not in message
    assert client.refusal("/%e9%00/")[0] == 404
    assert client.refusal(client.path[:-2] + "/")[0] == 404


def test_tokens_are_never_the_same() -> None:
    inputs = inputs_of(record())
    with serving(inputs, title="") as one, serving(inputs, title="") as two:
        tokens = {urlsplit(url).path.strip("/") for url in (one, two)}
        assert len(tokens) == 2
        assert all(len(token) >= 22 for token in tokens)  # 128 bits
        assert Client(one).refusal(urlsplit(two).path)[0] == 404


def test_the_token_alone_leads_to_the_page(client: Client) -> None:
    status, headers, _ = client.ask(client.path.rstrip("/"))
    assert (status, headers["Location"]) == (307, client.path)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{}", "[::1]:{}"])
def test_other_hosts_are_refused(client: Client, host: str) -> None:
    """A page asked_for may make its own name lead here (DNS rebinding)."""
    port = client.host.split(":")[1]
    for path in ("", f"tile?{urlencode(TILE)}", "/"):
        assert client.refusal(path, Host=host.format(port))[0] == 421
    assert client.ask(headers={"Host": f"LocalHost:{port}"})[0] == 200  # this machine too


def test_other_origins_are_refused(client: Client) -> None:
    path = "mix?input=0&stack=0&layer=0"
    for origin in ("http://evil.example", "null", "https://" + client.host, "http://127.0.0.1", "http://localhost:1"):
        assert client.refusal(path, "POST", bytes(36), Origin=origin)[0] == 403
        assert client.refusal("", Origin=origin)[0] == 403
    assert client.ask(path, "POST", bytes(36), {"Origin": "http://" + client.host})[0] == 200


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("", "GET, HEAD"), ("tile", "GET, HEAD"), ("terms", "GET, HEAD"), ("stats", "GET, HEAD"), ("mix", "POST")],
)
def test_only_the_methods_that_are_meant(client: Client, path: str, allowed: str) -> None:
    for method in {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"} - {*allowed.split(", ")}:
        status, headers, _ = client.ask(path, method)
        assert (status, headers["Allow"]) == (405, allowed)

    status, headers, body = client.ask(method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) == len(client.ask()[2])


def test_a_path_that_is_not_there_says_what_is(client: Client) -> None:
    assert client.refusal("weights") == (404, "Unknown path 'weights': expected tile, mix, terms, stats.")
    assert client.refusal("../etc/passwd")[0] == 404
    assert client.refusal("tile/")[0] == 404


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    port = int(client.host.split(":")[1])
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        other.bind(("127.0.0.2", port))  # fails if somebody listens on every address


# Working things out.


def test_answers_are_kept(fresh: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = Head.blocks

    def counted(self: Head, *args: Any) -> Generator[None, None, Any]:
        asked.append(args)
        return real(self, *args)

    monkeypatch.setattr(Head, "blocks", counted)
    first = fresh.tile()
    assert len(asked) == 1
    np.testing.assert_array_equal(fresh.tile(), first)
    assert len(asked) == 1
    fresh.tile(how="mean")
    fresh.tile(layer=1)
    assert len(asked) == 3


def test_the_oldest_answers_go_first() -> None:
    kept = Kept(10)
    for name in "abc":
        kept.put(name, name.encode() * 3)
    assert kept.get("a") == b"aaa"
    kept.put("d", b"dddd")
    assert [kept.get(name) for name in "abcd"] == [b"aaa", None, b"ccc", b"dddd"]
    kept.put("c", b"c")
    assert (kept.size, kept.get("c")) == (8, b"c")
    kept.put("e", bytes(11))  # larger than all
    assert (kept.size, len(kept.answers)) == (0, 0)


def endless(began: threading.Event, ended: threading.Event) -> Callable[[Answers, Question], Answer[Any]]:
    def part() -> Generator[None, None, None]:
        try:
            while True:
                began.set()
                yield
        finally:
            ended.set()

    return lambda self, asked: Answer([part()], lambda: None, 10**9)


def test_nothing_is_worked_out_for_a_client_that_is_gone(fresh: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(Answers, "tile", endless(began, ended))
        fresh.connection.request("GET", f"{fresh.path}tile?{urlencode(TILE)}")
        assert began.wait(LONG)
    assert Client(fresh.url).tile().shape == (9, 9)  # others do not wait for it
    assert not ended.is_set()
    fresh.connection.close()
    assert ended.wait(LONG)


def test_the_end_does_not_wait_for_what_is_being_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(Answers, "tile", endless(began, ended))
    with serving(inputs_of(record()), title="") as url:
        client = Client(url)
        client.connection.request("GET", f"{client.path}tile?{urlencode(TILE)}")
        assert began.wait(LONG)
    answer = client.connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (503, {"error": "The server was stopped."})
    client.connection.close()
    with pytest.raises(ConnectionRefusedError):
        client.connection.connect()


def test_large_answers_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_CELLS", 80)
    assert client.refusal(f"tile?{urlencode(TILE)}") == (400, "height × width: expected at most 80. Received: 9 × 9")


# Starting and stopping.


def test_a_port_that_there_is_not_or_in_use_is_one_sentence(client: Client) -> None:
    port = int(client.host.split(":")[1])
    with pytest.raises(FileError) as caught:
        serve(inputs_of(record()), title="", port=port)
    assert str(caught.value) == f"port {port} is in use. Choose another one, or --port 0 for a free port"

    for wrong in (-1, 65536):
        with pytest.raises(
            ArgumentError, match=f"expected 0 to 65535, where 0 means a free port. Received: port={wrong}"
        ):
            serve(inputs_of(record()), title="", port=wrong)


def test_a_given_port_is_taken() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in "and again at once", "":
        with serving(inputs_of(record()), title="", port=port) as url:
            assert urlsplit(url).port == port
            client = Client(url)
            client.connection.request("GET", client.path)
            assert client.connection.getresponse().read()
        client.connection.close()  # after the server, whose port the system then keeps for a while


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ArgumentError, match="needs the extra view"):
        serve(inputs_of(record()), title="")


PROGRAM = """
import urllib.request, webbrowser
import torch, headwise
from headwise.viewer import inputs_of
from headwise.viewer.server import serve

webbrowser.open = lambda url: print("opened", url, urllib.request.urlopen(url).status)
q = torch.randn(1, 2, 9, 4)
inputs = inputs_of(headwise.attention(q, q, q, record=True)[1])
serve(inputs, title="A \\x1b[31mred\\x1b[0m title", open_page=True)
print("stopped")
"""


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent another way there")
def test_it_opens_the_page_and_runs_until_ctrl_c() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            line = process.stdout.readline().decode()
            found = re.fullmatch(
                r"Serving A \\u001b\[31mred\\u001b\[0m title at (http://127\.0\.0\.1:\d+/\S+/) — Ctrl-C stops it\n",
                line,
            )
            assert found is not None, line
            assert process.stdout.readline().decode() == f"opened {found[1]} 200\n"
            assert Client(found[1]).tile().shape == (9, 9)
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=LONG)
        finally:
            process.kill()
    assert (rest, errors, process.returncode) == (b"stopped\n", b"", 0)


def test_no_line_tells_the_token(
    client: Client, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    client.ask()
    client.ask("/")
    out, err = capfd.readouterr()
    assert (out, err, caplog.text) == ("", "", "")


@pytest.mark.browser
def test_a_browser_shows_the_page(chromium: Any) -> None:
    """Its policy lets it run, and nothing in a text does."""
    seen = look(record(length=9, mask=masks.causal()), labels=HOSTILE)
    context = chromium.new_context()
    tab, trouble, asked_for = context.new_page(), [], []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: trouble.append(dialog.message))
    with serving(inputs_of(seen), title=HOSTILE[0]) as url:
        tab.on("request", lambda request: asked_for.append(request.url))
        tab.goto(url)
        tab.wait_for_function("() => window.headwise?.source.kind === 'server'")
        found = tab.evaluate(
            "async () => Array.from(await headwise.source.inputs[0].stacks[0].tile(0, 1, [0, 9], [0, 9], 9, 9, 'max'))"
        )
        context.close()  # before the server is gone: the page still asks
    assert trouble == []
    assert [address for address in asked_for if not address.startswith((url, "data:", "blob:"))] == []
    weights = seen.records[0].weights()[0, 1].numpy()
    np.testing.assert_allclose(np.nan_to_num(np.reshape(found, (9, 9)).astype(float)), weights, rtol=0, atol=1e-6)
