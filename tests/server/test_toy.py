"""A task made outside of the package is served: its class says what its columns are, and nothing else is edited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwise import tasks
from headwise.errors import ArgumentError, HeadwiseError
from headwise.server.engine import Served
from headwise.server.interface import Interface
from headwise.server.interfaces import open_interface
from headwise.server.interfaces.task_interface import TaskInterface
from headwise.server.pool.answering import answer_all
from headwise.tasks.columns import Row
from headwise.tasks.rows.tables import Data
from tests.server.plain_engine import client
from tests.server.protocols.engines import InProcess
from tests.tasks.test_toy import Toy
from tests.tasks.training.mini_task import MiniTask


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "run"
    Toy.fit({"word": ["decade", "cab", "bed", "add"] * 3}, out=folder, epochs=1, monitor_every=0)
    return folder


class OfInterface(InProcess):
    """The engine of one model, "toy"."""

    def __init__(self, interface: Interface[Any]) -> None:
        super().__init__()
        self.interface = interface
        self.served = {("toy", "1"): Served("toy", "1", interface.description, True)}

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        return list(answer_all(self.interface, rows, 8, lambda what, error: pytest.fail(f"{what}: {error}")))


def test_its_run_folder_is_served(run: Path) -> None:
    asking = client(engine=OfInterface(open_interface(run)))
    assert [each["name"] for each in asking.get("/v2/models/toy").json()["inputs"]] == ["word"]
    first, empty, long = (asking.post("/toy", json={"word": word}).json() for word in ("decade", " ", "a" * 9))
    assert first == tasks.load(run).predict(["decade"])[0]
    assert "word: expected a text. Received: an empty text" in str(empty)
    assert "expected at most 8 tokens. Received: 9 tokens" in str(long)


def test_its_answers_are_explained_and_not_streamed(run: Path) -> None:
    interface = open_interface(run)
    asked = interface.read({"word": "cab"})
    (shown,) = interface.explain(asked)["inputs"]
    assert len(shown["stacks"][0]["columns"]) == 3
    with pytest.raises(ArgumentError, match="toy does not generate text piece by piece"):
        interface.stream(asked)


def test_a_task_without_columns_says_so() -> None:
    task = MiniTask.learn(Data("none", {}, []), MiniTask.options_type())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"mini cannot be served: .* Received: MiniTask without columns"):
        TaskInterface(task, "fp32")
