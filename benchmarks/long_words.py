"""How long normal clients wait while two others send texts of a single long word to /explain.

    python benchmarks/long_words.py RUN                     # 10 s without them, 10 s with them

RUN is a run of a task that reads "text", such as classify. The two alternate between 1 MB, which is refused, and the
most characters that are allowed. It fails if a normal client gets another status than 200, or any client a 504.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import quantiles

import aiohttp
from soak import _address

from headwise.server.pool.answering import CHARACTERS_PER_TOKEN
from headwise.server.settings import Settings

NORMAL = {"text": "a warm, funny film that knows what it wants"}
LONG = [{"text": "a" * 2**20}, {"text": "a" * (CHARACTERS_PER_TOKEN * Settings().max_tokens)}]


async def load(address: str, seconds: float, clients: int, long: int) -> tuple[list[float], Counter[int], Counter[int]]:
    """Seconds of each normal answer, and the statuses of normal and of long requests."""
    end = time.monotonic() + seconds
    waits: list[float] = []
    normal_codes: Counter[int] = Counter()
    long_codes: Counter[int] = Counter()
    async with aiohttp.ClientSession(address) as session:
        (route,) = {f"/{model['task']}" for model in (await (await session.get("/")).json())["models"]}

        async def ask_normally() -> None:
            while time.monotonic() < end:
                began = time.monotonic()
                async with session.post(route, json=NORMAL) as answer:
                    await answer.read()
                    normal_codes[answer.status] += 1
                waits.append(time.monotonic() - began)

        async def ask_long() -> None:
            number = 0
            while time.monotonic() < end:
                async with session.post("/explain", json=LONG[number % 2]) as answer:
                    await answer.read()
                    long_codes[answer.status] += 1
                number += 1

        await asyncio.gather(*(ask_normally() for _ in range(clients)), *(ask_long() for _ in range(long)))
    return waits, normal_codes, long_codes


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--seconds", type=float, default=10)
    arguments.add_argument("--clients", type=int, default=8)
    chosen = arguments.parse_args()
    command = [sys.executable, "-m", "headwise", "serve", f"model={chosen.run}"]
    ports = ["--port", "0", "--grpc-port", "off", "--tensorflow-port", "off"]
    well = True
    with subprocess.Popen([*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = _address(process)
            for long in (0, 2):
                waits, normal, others = asyncio.run(load(address, chosen.seconds, chosen.clients, long))
                cuts = quantiles(waits, n=100)
                said = f"p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms, statuses {dict(normal)}"
                print(f"{long} clients with long words: {said}; of /explain {dict(others)}")
                well = well and set(normal) == {200} and 504 not in others
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
