"""Serving one MiniLM classifier: `headwise serve` against what people write by hand, by requests a second and latency.

    python benchmarks/serving.py --data ../shared/data/sst2               # about 8 minutes on 2 cores
    python benchmarks/serving.py --data ../shared/data/sst2 --seconds 3 --rounds 1     # a first look
    python benchmarks/serving.py --data ../shared/data/sst2 --json results.json

The peers, in `serving_peers.py`, run the same weights with transformers: FastAPI, which answers one request at a time,
and LitServe, which makes batches of up to 32. LitServe and headwise have as many workers as there are cores, with one
thread each; `--workers 1` gives one worker all threads. Every server gets the same sentences in the same order over
loopback, from 1, 8, 32 and 128 clients that each wait for an answer before they ask again; the servers take turns, so
that whatever else the machine does slows all down alike. Ratios are those of the turns: the median, and the lowest and
the highest. Every answer is compared: the benchmark ends where one differs. Last one client asks for the answer to 128
tokens, and for the answer with a row of attention (`/explain?rows=0`), in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

CLIENTS = (1, 8, 32, 128)
LONG = " ".join(["a warm, funny film that knows what it wants and ends well"] * 9)
LONG += " a warm, funny film that knows what it"  # 128 tokens with [CLS] and [SEP]
FASTAPI, LITSERVE = "FastAPI + transformers", "LitServe + transformers"
OURS, OURS_ONNX = "headwise serve", "headwise serve, ONNX"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="a folder with train.tsv and test.tsv")
    arguments.add_argument("--run", type=Path, help="a run of classify on MiniLM; default: one is trained, a minute")
    arguments.add_argument("--seconds", type=float, default=8, help="of each measurement")
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each server")
    arguments.add_argument("--only", nargs="+", help="servers whose names begin so")
    arguments.add_argument("--workers", type=int, default=os.cpu_count(), help="of LitServe and headwise")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 140)
    about = {"machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores", **_versions()}
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    lines = (chosen.data / "test.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[0] for line in lines]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = prepare(folder, chosen.data, chosen.run, chosen.workers)
        if chosen.only:
            commands = {name: each for name, each in commands.items() if name.startswith(tuple(chosen.only))}
        found = {(name, clients): Load() for name in commands for clients in CLIENTS}
        expected: dict[str, str] = {}
        explained: list[float] = []
        for _ in range(chosen.rounds):
            for name, command in commands.items():
                with Server(command) as server:
                    for clients in CLIENTS:
                        asyncio.run(load(server.url, texts, clients, 1.0, Load(), expected))  # warm
                        asyncio.run(load(server.url, texts, clients, chosen.seconds, found[name, clients], expected))
                    if name == OURS:
                        explained.append(asyncio.run(explain(server.url, chosen.seconds)))
    print_table(console, found)
    if explained:
        console.print(f"/explain?rows=0 takes {_spread(explained)} of the time of the answer, at 128 tokens")
    if chosen.json:
        rows = [{"server": name, "clients": clients, **each.figures()} for (name, clients), each in found.items()]
        chosen.json.write_text(
            json.dumps({"about": about, "rows": rows, "explained": explained}, indent=1), encoding="utf-8"
        )


def prepare(folder: Path, data: Path, run: Path | None, workers: int) -> dict[str, list[str]]:
    """The servers' commands; "{port}" stands for their port. One process makes what they read: this one stays small."""
    script = Path(__file__).with_name("serving_peers.py")
    python = sys.executable
    subprocess.run([python, script, "prepare", data, folder, *([run] if run else [])], check=True)
    options = ["--port", "{port}", "--grpc-port", "off", "--tensorflow-port", "off", "--workers", str(workers)]
    return {
        FASTAPI: [python, str(script), "fastapi", str(folder / "transformers"), "{port}"],
        LITSERVE: [python, str(script), "litserve", str(folder / "transformers"), "{port}", str(workers)],
        OURS: [python, "-m", "headwise", "serve", str(folder / "run"), *options],
        OURS_ONNX: [python, "-m", "headwise", "serve", str(folder / "onnx"), *options],
    }


@dataclass
class Load:
    """What clients saw: the seconds that each request took, and how many were answered in how many seconds."""

    taken: list[float] = field(default_factory=list)
    seconds: float = 0.0
    rates: list[float] = field(default_factory=list)  # one for each turn
    tails: list[float] = field(default_factory=list)  # the 99th percentile of each turn, in seconds

    def figures(self) -> dict[str, float]:
        cuts = quantiles(self.taken, n=100)
        return {"requests_per_second": median(self.rates), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


async def load(url: str, texts: list[str], clients: int, seconds: float, into: Load, expected: dict[str, str]) -> None:
    """Ask from so many clients for so long. Each begins elsewhere in the texts."""
    stop = time.perf_counter() + seconds
    taken: list[float] = []

    async def client(number: int, session: aiohttp.ClientSession) -> None:
        place = number * len(texts) // clients
        while (begun := time.perf_counter()) < stop:
            text = texts[place % len(texts)]
            async with session.post(url, json={"text": text}) as reply:
                answer = await reply.json()
            taken.append(time.perf_counter() - begun)
            if reply.status != 200 or expected.setdefault(text, answer["label"]) != answer["label"]:
                raise SystemExit(f"{url}: expected {expected.get(text)!r}, received {reply.status} {answer}")
            place += 1

    begun = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(number, session) for number in range(clients)))
    into.rates.append(len(taken) / (time.perf_counter() - begun))
    into.tails.append(quantiles(taken, n=100)[98] if len(taken) > 1 else float("nan"))
    into.taken += taken


async def explain(url: str, seconds: float) -> float:
    """The time of an answer with a row of attention, over that of the answer alone: medians of one client in turns."""
    urls = (url, url.replace("/classify", "/explain?rows=0"))
    taken: dict[str, list[float]] = {each: [] for each in urls}
    stop = time.perf_counter() + seconds
    async with aiohttp.ClientSession() as session:
        while time.perf_counter() < stop or len(taken[urls[1]]) < 5:
            for each in urls:
                begun = time.perf_counter()
                async with session.post(each, json={"text": LONG}, headers={"Accept-Encoding": "identity"}) as reply:
                    await reply.read()
                assert reply.status == 200, reply.status
                taken[each].append(time.perf_counter() - begun)
    return median(taken[urls[1]]) / median(taken[urls[0]])


class Server:
    """A server in a process group of its own, from its first answer to its end."""

    def __init__(self, command: list[str], path: str = "/classify") -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{path}"
        self._command = [part.format(port=port) for part in command]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the server)

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(
            self._command, stdout=self._said, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while not asyncio.run(_answers(self.url)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._said.seek(0)
                raise SystemExit(f"{' '.join(self._command)} does not answer:\n{self._said.read().decode()[-3000:]}")
            time.sleep(0.3)
        return self

    def __exit__(self, *_: Any) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


async def _answers(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.post(url, json={"text": "a film"}) as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


def print_table(console: Console, found: dict[tuple[str, int], Load]) -> None:
    """Each server's figures, beside the ratio to the first one's at as many clients."""
    table = Table("", "clients", "requests/s", "× FastAPI", "p50 ms", "p99 ms", "p99 × FastAPI")
    for column in table.columns[1:]:
        column.justify = "right"
    for (name, clients), each in found.items():
        own = each.figures()
        base = found.get((FASTAPI, clients), each)
        ratio = _spread([x / y for x, y in zip(each.rates, base.rates, strict=True)])
        tail = _spread([x / y for x, y in zip(each.tails, base.tails, strict=True)])
        rate, middle, late = own.values()
        end = clients == CLIENTS[-1]
        table.add_row(
            name if clients == CLIENTS[0] else "",
            str(clients),
            f"{rate:.0f}",
            ratio,
            f"{middle:.1f}",
            f"{late:.1f}",
            tail,
            end_section=end,
        )
    console.print(table)


def _spread(ratios: list[float]) -> str:
    """`1.20 (1.10 to 1.31)`."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("headwise", "torch", "transformers", "fastapi", "litserve", "onnxruntime")}


if __name__ == "__main__":
    main()
