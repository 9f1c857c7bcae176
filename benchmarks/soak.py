"""A server under load for a while: no error, and memory that does not grow.

    python benchmarks/soak.py RUN                           # 60 s, 32 connections: a run of a task that reads "text"
    python benchmarks/soak.py RUN --seconds 10 --json soak.json
    python benchmarks/soak.py RUN --seconds 600 --connections 128 --workers 2 --kill-every 20 --reload-every 30

Starts `headwise serve RUN` on a free port and asks its plain route from connections that each wait for an answer before
they ask again. Texts have 1 to 300 words, some requests have several rows, some clients leave before their answer. An
answer is wrong if its probabilities differ from those that the same text got first. With `--kill-every` a worker is
killed so often, and the requests that it had may get 503; with `--reload-every` the model is loaded anew. The
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
    arguments.add_argument("--kill-every", type=float, default=0, metavar="SECONDS")
    arguments.add_argument("--reload-every", type=float, default=0, metavar="SECONDS")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()
    command = [sys.executable, "-m", "headwise", "serve", f"model={chosen.run}", "--workers", str(chosen.workers)]
    ports = ["--port", "0", "--grpc-port", "off", "--tensorflow-port", "off"]
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = _address(process)
            every = {"kill": chosen.kill_every, "reload": chosen.reload_every}
            found = asyncio.run(soak(address, process.pid, chosen.seconds, chosen.connections, every))
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


async def soak(address: str, pid: int, seconds: float, connections: int, every: dict[str, float]) -> dict[str, object]:
    """The figures of so many connections for so long. `every`: the seconds between two of "kill" and "reload"."""
    end = time.monotonic() + seconds
    codes: Counter[str] = Counter()
    latencies: list[float] = []
    memory: list[float] = []
    done: Counter[str] = Counter()
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.choice((1, 5, 10, 20, 40, 80, 300)))) for _ in range(400)]
    first: dict[str, dict[str, float]] = {}  # the probabilities that each text got first

    async def disturb(what: str, session: aiohttp.ClientSession) -> None:
        while every[what] and time.monotonic() + every[what] < end:
            await asyncio.sleep(every[what])
            came = what
            if what == "kill":
                random.choice(psutil.Process(pid).children()).kill()
            else:
                async with session.post("/v2/repository/models/model/load") as reply:
                    if reply.status != 200:  # a worker was killed while it loaded
                        came = f"reload refused: {reply.status}"
            done[came] += 1

    def is_wrong(row: dict[str, Any], text: str) -> bool:
        if "error" in row:
            return False
        known = first.setdefault(text, row.get("probabilities", {}))
        return any(abs(share - row["probabilities"][label]) > 1e-3 for label, share in known.items())

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(await asyncio.to_thread(_memory, pid))
            await asyncio.sleep(0.5)

    connector = aiohttp.TCPConnector(limit=connections + 2)  # those that load the model have their own
    async with aiohttp.ClientSession(address, connector=connector) as session:
        (route,) = {f"/{model['task']}" for model in (await (await session.get("/")).json())["models"]}

        async def ask(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < end:
                began = time.monotonic()
                try:
                    patience = 0.001 if draw.random() < 0.02 else None  # some leave
                    body = _body(draw, texts)
                    status, said = await asyncio.wait_for(_asked(session, route, body), patience)
                except asyncio.TimeoutError:
                    codes["left"] += 1
                    continue
                except aiohttp.ClientError as error:
                    codes[type(error).__name__] += 1
                    continue
                if status == 503 and every["kill"]:
                    codes["503"] += 1
                    await asyncio.sleep(0.1)
                    continue
                rows = said.get("rows", [said]) if status == 200 else []
                asked = [row["text"] for row in body.get("rows", [body])]
                failed = any("error" in row for row in rows)
                wrong = rows and (len(rows) != len(asked) or any(map(is_wrong, rows, asked)))
                codes["wrong" if wrong else "row failed" if failed else str(status)] += 1
                latencies.append(time.monotonic() - began)

        disturbing = (disturb(what, session) for what in every)
        await asyncio.gather(watch(), *disturbing, *(ask(number) for number in range(connections)))
    third = len(memory) // 3
    cuts = quantiles(latencies, n=100)
    return {
        "seconds": seconds,
        "connections": connections,
        "answers": codes["200"],
        "left before their answer": codes.pop("left", 0),
        "refused while a worker was replaced": codes.pop("503", 0) if every["kill"] else 0,
        "workers killed": done.pop("kill", 0),
        "reloads": done.pop("reload", 0),
        "reloads refused while a worker was replaced": done.pop("reload refused: 503", 0) if every["kill"] else 0,
        "errors": {**done, **{code: count for code, count in codes.items() if code != "200"}},
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


def _body(draw: random.Random, texts: list[str]) -> dict[str, Any]:
    def row() -> dict[str, str]:
        return {"text": draw.choice(texts)}

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
