"""Debian's Firefox, driven over WebDriver BiDi (https://www.w3.org/TR/webdriver-bidi): it needs no driver beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

START_S = 60


class Firefox:
    """One tab. Its answers are those of the protocol, without their wrapping."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.number = 0
        self.console: list[str] = []  # errors and warnings
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["log.entryAdded"])
        self.tab = self.ask("browsingContext.create", type="tab")["context"]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            said = json.loads(self.socket.recv(timeout=START_S))
            if said.get("method") == "log.entryAdded" and said["params"]["level"] in ("error", "warn"):
                self.console.append(said["params"]["text"])
            if said.get("id") == self.number:
                if said["type"] == "error":
                    raise RuntimeError(f"{method}: {said['message']}")
                return dict(said["result"])

    def open(self, address: str) -> None:
        self.ask("browsingContext.navigate", context=self.tab, url=address, wait="complete")

    def evaluate(self, script: str) -> Any:
        """The value of an expression, or what its promise resolves to, by way of JSON."""
        said = self.ask(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({script})))()",
            target={"context": self.tab},
            awaitPromise=True,
        )
        if said["type"] == "exception":
            raise RuntimeError(said["exceptionDetails"]["text"])
        return json.loads(said["result"].get("value", "null"))

    def press(self, key: str) -> None:
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.ask("input.performActions", context=self.tab, actions=[{"type": "key", "id": "keys", "actions": keys}])


@contextmanager
def firefox() -> Iterator[Firefox | None]:
    """A headless Firefox with an empty profile; None where there is none."""
    program = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        printed = Path(folder) / "printed.txt"
        command = [program, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", "0"]
        with printed.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                with connect(_address(printed), max_size=None) as socket:
                    yield Firefox(socket)
            finally:
                process.terminate()


def _address(printed: Path) -> str:
    """Where it listens, which it prints when it does."""
    for _ in range(START_S * 10):
        if found := re.search(r"BiDi listening on (ws://\S+)", printed.read_text("utf-8", "replace")):
            return f"{found[1]}/session"
        time.sleep(0.1)
    raise RuntimeError(f"Firefox did not start within {START_S} s: {printed.read_text('utf-8', 'replace')[-500:]}")
