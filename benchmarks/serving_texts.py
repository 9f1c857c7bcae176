"""Serving a model that writes texts: texts a second of `headwise serve`, against another checkout of it.

    python benchmarks/serving_texts.py RUN texts.txt --before ../older-checkout

RUN is a run of translate, summarize, reply or causal language; each line of the file is a text. Both servers have one
worker, get the same texts in the same order over loopback, and take turns. Every answer must be that of `predict`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table
from serving import Server

from headwise import tasks


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("texts", type=Path)
    arguments.add_argument("--before", type=Path, help="the folder of another checkout")
    arguments.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    arguments.add_argument("--seconds", type=float, default=8, help="of each measurement")
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each server")
    chosen = arguments.parse_args()

    texts = chosen.texts.read_text(encoding="utf-8").splitlines()[:96]
    task: Any = tasks.load(chosen.run)
    expected = {text: task.predict([text])[0][task.writes] for text in texts}
    options = ["--port", "{port}", "--grpc-port", "off", "--tensorflow-port", "off"]
    command = [sys.executable, "-m", "headwise", "serve", str(chosen.run.resolve()), *options]
    here = Path(__file__).resolve().parents[1]
    checkouts = {"before": chosen.before.resolve(), "after": here} if chosen.before else {"after": here}
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(chosen.rounds):
        for name, folder in checkouts.items():
            os.environ["PYTHONPATH"] = str(folder)
            os.chdir(folder)  # which Python searches first
            with Server(command, path=f"/{task.name}") as server:
                for clients in chosen.clients:
                    asyncio.run(load(server.url, expected, task.writes, clients, 1.0))  # warm
                    rate = asyncio.run(load(server.url, expected, task.writes, clients, chosen.seconds))
                    rates.setdefault((name, clients), []).append(rate)

    table = Table("", "clients", "texts/s", "ratio of each turn")
    for (name, clients), found in rates.items():
        ratios = [x / y for x, y in zip(found, rates.get(("before", clients), found), strict=True)]
        table.add_row(name, str(clients), f"{median(found):.1f}", " ".join(f"{ratio:.2f}" for ratio in ratios))
    Console(width=None if sys.stdout.isatty() else 100).print(table)


async def load(url: str, expected: dict[str, str], column: str, clients: int, seconds: float) -> float:
    """Texts a second, from so many clients that each wait for an answer before they ask again."""
    texts, stop, count = list(expected), time.perf_counter() + seconds, 0

    async def client(number: int, session: aiohttp.ClientSession) -> None:
        nonlocal count
        place = number * len(texts) // clients
        while time.perf_counter() < stop:
            text = texts[place % len(texts)]
            async with session.post(url, json={"text": text}) as reply:
                answer = await reply.json()
            if reply.status != 200 or answer[column] != expected[text]:
                raise SystemExit(f"{url}: expected {expected[text]!r}, received {reply.status} {answer}")
            count += 1
            place += 1

    begun = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(number, session) for number in range(clients)))
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
