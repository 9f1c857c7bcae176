"""A server under load for a while: no error, and memory that does not grow.

    python benchmarks/soak.py RUN                           # 60 s, 32 connections: a run of a task that reads "text"
    python benchmarks/soak.py RUN --seconds 10 --json soak.json

Starts `headwise serve RUN` on a free port and asks its plain route from connections that each wait for an answer before
they ask again. Texts have 1 to 300 words, some requests have several rows, some clients leave before their answer. The
memory is that of all its processes (the part of each that is its own, and its share of the rest: PSS, where there is
/proc), read twice a second; it is flat if the last third has no more than 5 % above the second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import aiohttp
import psutil

FLAT = 1.05
WORDS = ["a", "warm", "funny", "film", "dull", "slow", "and", "the", "actors", "know", "nothing", "ends", "well"]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--connections", type=int, default=32)
    arguments.add_argument("--workers", type=int, default=1)
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()
    command = [sys.executable, "-m", "headwise", "serve", f"model={chosen.run}", "--workers", str(chosen.workers)]
    ports = ["--port", "0", "--grpc-port", "off", "--tensorflow-port", "off"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = _address(process)
            found = asyncio.run(soak(address, process.pid, chosen.seconds, chosen.connections))
            process.send_signal(signal.SIGTERM)
            found["exit code"] = process.wait(60)
        finally:
            process.kill()
    for name, value in found.items():
        print(f"{name}: {value}")
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    well = not found["errors"] and found["memory, last third / second"] <= FLAT and found["exit code"] == 0
    print("no error, and memory is flat" if well else "FAILED")
    return 0 if well else 1


async def soak(address: str, pid: int, seconds: float, connections: int) -> dict[str, object]:
    """The figures of so many connections for so long."""
    end = time.monotonic() + seconds
    codes: Counter[str] = Counter()
    latencies: list[float] = []
    memory: list[float] = []

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(await asyncio.to_thread(_memory, pid))
            await asyncio.sleep(0.5)

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(address, connector=connector) as session:
        (route,) = {f"/{model['task']}" for model in (await (await session.get("/")).json())["models"]}

        async def ask(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    patience = 0.001 if draw.random() < 0.02 else None  # some leave
                    status, said = await asyncio.wait_for(_asked(session, route, _body(draw)), patience)
                except asyncio.TimeoutError:
                    codes["left"] += 1
                    continue
                except aiohttp.ClientError as error:
                    codes[type(error).__name__] += 1
                    continue
                failed = status == 200 and any("error" in row for row in said.get("rows", []))
                codes["row failed" if failed else str(status)] += 1
                latencies.append(time.monotonic() - began)

        await asyncio.gather(watch(), *(ask(number) for number in range(connections)))
    third = len(memory) // 3
    cuts = quantiles(latencies, n=100)
    return {
        "seconds": seconds,
        "connections": connections,
        "answers": codes["200"],
        "left before their answer": codes.pop("left", 0),
        "errors": {code: count for code, count in codes.items() if code != "200"},
        "requests a second": round(len(latencies) / seconds, 1),
        "p50 ms": round(cuts[49] * 1000, 1),
        "p99 ms": round(cuts[98] * 1000, 1),
        "memory MB, at first": round(memory[0]),
        "memory MB, last third": round(mean(memory[-third:])),
        "memory, last third / second": round(mean(memory[-third:]) / mean(memory[third : 2 * third]), 3),
    }


async def _asked(session: aiohttp.ClientSession, route: str, body: dict[str, object]) -> tuple[int, dict[str, Any]]:
    async with session.post(route, json=body) as answer:
        return answer.status, await answer.json()


def _body(draw: random.Random) -> dict[str, object]:
    def row() -> dict[str, str]:
        return {"text": " ".join(draw.choices(WORDS, k=draw.choice((1, 5, 10, 20, 40, 80, 300))))}

    return row() if draw.random() < 0.9 else {"rows": [row() for _ in range(draw.randint(1, 8))]}


def _memory(pid: int) -> float:
    """MB of a process and all below it."""
    total = 0.0
    process = psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            full = each.memory_full_info()
            total += getattr(full, "pss", full.rss)
    return total / 2**20


def _address(process: subprocess.Popen[str]) -> str:
    address = None
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.match(r"HTTP: (\S+)", line):
            address = match[1]
        if line.startswith("Ready"):
            assert address is not None
            return address
    raise SystemExit(f"headwise serve ended with exit code {process.wait()}")


if __name__ == "__main__":
    sys.exit(main())
