"""Computes items by Ray Data workers (processes on this machine or on a cluster). For a file, an item is one part.

For a file, only the numbers of parts go through Ray: a worker reads its chunk and writes its part itself. So the file,
the model's folder and the folder of `out` must be accessible to all machines under the same path.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from headwise.errors import ArgumentError, HeadwiseError, shortened
from headwise.extras import need
from headwise.tasks.bulk.parts import Work
from headwise.tasks.bulk.tries import TRIES, Tries
from headwise.tasks.rows.chunks import Reader

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_STORE = 100_000_000  # bytes; Ray's minimum is 75 MiB, and little data goes through it

Do = Callable[[Any], Any]


def answer_parts(work: Work, missing: Sequence[int], workers: int, address: str | None, *, gpus: bool) -> Iterator[int]:
    """Compute the parts in any order, and yield the number of each finished part.

    Args:
        workers, address: as for `on_workers` and `connected`.
        gpus: whether each worker gets a GPU, if the cluster has enough.

    Raises:
        ArgumentError: Ray is not installed or does not respond, a part cannot be computed, or its worker ended `TRIES`
            times; the message says which rows.
    """
    with connected(workers, address) as ray:
        items = ray.data.from_items(
            [{"item": number, "given": pickle.dumps(number), "error": ""} for number in missing],
            override_num_blocks=min(len(missing), 64 * workers),
        )
        for number, _ in on_workers(ray, items, _Parts(work), workers, work.describe_rows, gpus=gpus):
            yield number


class _Parts:
    """Loads the model in a worker: `_Parts(work)()` returns a function, which computes the part with a given number."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self) -> Do:
        work, answers, reader = self._work, self._work.job.load(), Reader(self._work.found)
        return lambda number: work.do(number, answers, reader)


def on_workers(
    ray: Any,
    items: Any,
    load: Callable[[], Do],
    workers: int,
    name: Callable[[Any], str],
    *,
    gpus: bool = False,
    in_order: bool = False,
) -> Generator[tuple[int, Any]]:
    """Let workers compute each item of a `ray.data.Dataset`; yields (number of the item, result).

    A worker that ends is replaced, on another machine if its machine is gone, and its item is computed again: at most
    `TRIES` times, so that an item that makes every worker end stops the work.

    Args:
        items: has the columns "item" (a number), "given" (pickled: what to compute) and "error" ("", or why the item
            cannot be computed).
        load: called once in each worker; returns the function for one item: `given` -> a value that can be pickled.
            It is pickled itself.
        workers: number of processes, each of which computes one item at a time.
        name: `given` of an item -> the name of the item in error messages.
        gpus: whether each worker gets a GPU, if the cluster has one for each.
        in_order: whether results come in the order of the items; else as they are finished.

    Raises:
        ArgumentError: an item cannot be computed, or Ray has failed.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    tries = ray.remote(Tries).options(num_cpus=0, scheduling_strategy=here).remote(TRIES * workers)
    done = items.map_batches(
        _Worker,
        fn_constructor_args=(load, tries, name),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=1 if gpus and ray.cluster_resources().get("GPU", 0) >= workers else 0,
    )
    done.context.execution_options.preserve_order = in_order
    try:
        for row in done.iter_rows():
            if row["error"]:
                raise ArgumentError(row["error"])
            yield int(row["item"]), pickle.loads(row["found"])
    except ray.exceptions.RayError as error:
        said = str(error).strip().splitlines()[-1]
        raise ArgumentError(
            f"the work on Ray has failed: {shortened(said, 300)}. Run the same command again to resume"
        ) from error


class _Worker:
    """One Ray worker: loads a model, and computes items. Returns errors in the data as a sentence, to stop the work."""

    def __init__(self, load: Callable[[], Do], tries: Any, name: Callable[[Any], str]) -> None:
        import ray

        self._get, self._tries, self._name = ray.get, tries, name
        self._failed = ""
        if not self._get(tries.loads.remote()):
            self._failed = (
                "Ray workers ended again and again while they loaded the model. Give each more memory: start fewer "
                "workers (--workers), or run on larger machines"
            )
            return
        try:
            self._do = load()
        except HeadwiseError as error:
            self._failed = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (item,), (given,), (said,) = (batch[name].tolist() for name in ("item", "given", "error"))
        said = said or self._failed
        found = None
        if not said:
            given = pickle.loads(given)
            if not self._get(self._tries.begins.remote(item)):
                said = (
                    f"{self._name(given)}: a Ray worker ended each of the {TRIES} times that it computed them. Look at "
                    "them for what needs too much memory. What is finished is kept: the same command resumes"
                )
            else:
                try:
                    found = self._do(given)
                except HeadwiseError as error:
                    said = str(error)
                self._get(self._tries.ends.remote(item))
        return {"item": [item], "found": [pickle.dumps(found)], "error": [said]}


@contextlib.contextmanager
def connected(workers: int, address: str | None, store: int = _STORE) -> Iterator[Any]:
    """A context with the module `ray`, connected to a cluster or to a new local Ray. An existing connection stays open.

    Args:
        address: the address of a cluster: "auto", "host:6379". None = RAY_ADDRESS or, without it, a local Ray on this
            machine, with as many CPUs as workers, which is stopped afterwards.
        store: bytes of shared memory of a local Ray.

    Raises:
        ArgumentError: Ray is not installed or does not respond.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    need("--engine ray", "ray")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if ray.is_initialized():
        with _settings(ray):
            yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own = {"num_cpus": workers, "object_store_memory": store, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else own)
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())
        where = f"the Ray cluster at {address} does not respond" if address else "Ray cannot be started here"
        raise ArgumentError(f"{where}: {shortened(said, 200)}") from error
    try:
        with _settings(ray):
            yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _settings(ray: Any) -> Iterator[None]:
    """A context in which Ray Data shows no progress bars. Its settings in this process are restored afterwards."""
    context = ray.data.DataContext.get_current()
    options = context.execution_options
    before = context.enable_progress_bars, context.target_max_block_size, options.preserve_order
    context.enable_progress_bars = False
    try:
        yield
    finally:
        context.enable_progress_bars, context.target_max_block_size, options.preserve_order = before
