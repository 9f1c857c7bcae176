"""`Crew`: keeps the configured number of worker processes alive. A new worker loads the same models as the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from headwise.errors import RequestRefused
from headwise.server.interface import Description
from headwise.server.logs import told
from headwise.server.pool.messages import Message
from headwise.server.pool.process import Worker
from headwise.server.pool.rows import Model
from headwise.server.pool.statistics import Statistics
from headwise.server.settings import Settings

_TRIES = 5  # failed starts of one worker in a row before it is given up
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds between two starts; doubles each time
_PATIENCE = 10.0  # seconds beyond a request's timeout that a busy worker may be silent, before it is replaced


class Crew:
    """The worker processes of a pool, their restarts, and the models that they load.

    Args:
        opener: "module:function", called in a worker with the path of a model, backend, precision and threads.
        received: called with each message of a worker that is not about loading.
        changed: called when a worker has loaded a model.
        died: called with a worker as soon as it is known to have ended.
    """

    def __init__(
        self,
        settings: Settings,
        opener: str,
        statistics: Statistics,
        received: Callable[[Worker, Message], None],
        changed: Callable[[], None],
        died: Callable[[Worker], None],
    ) -> None:
        self._settings, self._statistics = settings, statistics
        self._setup: Message = (
            opener,
            {
                "backend": settings.backend,
                "precision": settings.precision,
                "threads": settings.worker_threads,
            },
            settings.max_tokens,
            settings.max_batch,
        )
        self._received, self._changed, self._died = received, changed, died
        self._tasks: list[asyncio.Task[None]] = []
        self._syncing: set[asyncio.Task[None]] = set()
        self.workers: list[Worker] = []  # alive
        self._processes: set[Worker] = set()  # also those whose process is about to end
        self.models: dict[int, Model] = {}  # by key: the models that every worker should load
        self.gave_up: list[str] = []  # the reason for each worker that is not restarted any more
        self._next_key = 0

    # Workers

    async def start(self) -> None:
        """Start every worker. Raises OSError if a process cannot be started."""
        for worker in [await self._spawn() for _ in range(self._settings.workers)]:
            self._tasks.append(asyncio.create_task(self._keep(worker)))
        self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """End every worker. Work that is not finished is lost."""
        tasks = [*self._tasks, *self._syncing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers:
            worker.end()
        await asyncio.gather(*(worker.ended.wait() for worker in self._processes))

    @property
    def lost(self) -> bool:
        """Whether no worker process is left, and none will be restarted."""
        return len(self.gave_up) == self._settings.workers

    def of(self, model: Model) -> list[Worker]:
        """Return the workers that have loaded this model."""
        return [worker for worker in self.workers if model.key in worker.loaded]

    async def _spawn(self) -> Worker:
        worker = Worker(self._receive, self._lose)
        await worker.start(self._settings.worker_threads, self._setup)
        self.workers.append(worker)
        self._processes.add(worker)
        return worker

    async def _keep(self, worker: Worker) -> None:
        """Restart a worker process whenever it ends; give up after too many failed restarts in a row."""
        failures = 0
        while True:
            await worker.ended.wait()
            self._processes.discard(worker)
            self._statistics.restarts += 1
            failures = 0 if worker.served else failures + 1
            told(logging.ERROR, "worker lost", worker=worker.pid, why=worker.why)
            while True:
                if failures >= _TRIES:
                    self._give_up(worker.why)
                    return
                if failures:
                    await asyncio.sleep(min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE))
                try:
                    worker = await self._spawn()
                    break
                except OSError as error:
                    failures += 1
                    worker.why = f"the process cannot be started: {error.strerror or error}"
            self.sync()

    def _give_up(self, why: str) -> None:
        told(logging.CRITICAL, "worker given up", tries=_TRIES, why=why)
        self.gave_up.append(why)
        self._changed()

    def _receive(self, worker: Worker, message: Message) -> None:
        if message[0] == "log":
            _, level, event, fields = message
            told(level, event, worker=worker.pid, **fields)
        else:
            self._received(worker, message)

    def _lose(self, worker: Worker) -> None:
        with contextlib.suppress(ValueError):
            self.workers.remove(worker)
        self._count()
        self._died(worker)

    async def _watch(self) -> None:
        """Kill a worker that still has work, but has sent nothing since long after every request's timeout."""
        patience = self._settings.timeout + _PATIENCE
        while True:
            await asyncio.sleep(min(5.0, patience / 4))
            now = asyncio.get_running_loop().time()
            for worker in list(self.workers):
                if (worker.batch or worker.joined or worker.streams) and now - worker.heard > patience:
                    worker.kill(f"it did not respond for {patience:g} seconds while it had work")

    # Models

    def key(self) -> int:
        """Return a new, unused key (a number that names a model in messages to workers)."""
        self._next_key += 1
        return self._next_key

    async def load(self, key: int, path: Path) -> Description:
        """Load a model in every living worker. Call `keep` afterwards, so that restarted workers load it too.

        Raises:
            RequestRefused: "bad_input": it cannot be loaded; "unavailable": no worker is alive, or one died loading it.
        """
        workers = list(self.workers)
        if not workers:
            raise RequestRefused("unavailable", "no worker is available to load the model; try again later")
        loads = [worker.load(key, path) for worker in workers]
        try:
            descriptions = await asyncio.gather(*loads)
        except BaseException:
            await asyncio.sleep(0)  # let other workers' refusals arrive
            for loading in loads:
                if loading.done() and not loading.cancelled():
                    loading.exception()  # mark as retrieved
                loading.cancel()
            self.drop(key)
            raise
        return descriptions[0]

    def keep(self, model: Model) -> None:
        """Make every worker load this model, also workers that are restarted later."""
        self.models[model.key] = model
        self.sync()

    def drop(self, key: int) -> None:
        """Unload this model from every worker."""
        self.models.pop(key, None)
        for worker in self.workers:
            worker.drop(key)
        self._count()

    def sync(self) -> None:
        """Make every worker load the models that it lacks, and count the workers that have loaded all models."""
        for worker in list(self.workers):
            for model in self.models.values():
                if model.key not in worker.loaded and not worker.loads(model.key):
                    task = asyncio.create_task(self._load_late(worker, model))
                    self._syncing.add(task)
                    task.add_done_callback(self._syncing.discard)
        self._count()

    async def _load_late(self, worker: Worker, model: Model) -> None:
        try:
            await worker.load(model.key, model.path)
        except RequestRefused as error:
            if worker.alive and model.key in self.models:
                worker.kill(f"it could not load {model.name}: {error}")
        else:
            self._count()
            self._changed()

    def _count(self) -> None:
        ready = [worker for worker in self.workers if worker.up and worker.loaded.issuperset(self.models)]
        for worker in ready:
            worker.served = True
        self._statistics.workers = len(ready)
