"""The parts of a file, computed by Ray Data workers: processes on this machine or on a cluster.

Only the numbers of parts go through Ray: a worker reads its chunk and writes its part itself. So the file, the
model's folder and the folder of `out` must be accessible to all machines under the same path.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from headwise.errors import ArgumentError, HeadwiseError, shortened
from headwise.tasks.bulk.parts import Work
from headwise.tasks.rows.chunks import Reader

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_STORE = 100_000_000  # bytes; Ray's minimum is 75 MiB, and little data goes through it


def answer_parts(work: Work, missing: Sequence[int], workers: int, address: str | None, *, gpus: bool) -> Iterator[int]:
    """Compute the parts in any order; yields the number of each finished part.

    Args:
        workers: number of processes, each of which loads the model and computes one part at a time.
        address: the address of a cluster: "auto", "host:6379". None = RAY_ADDRESS or, without it, a local Ray on this
            machine, with as many CPUs as workers, which is stopped afterwards.
        gpus: whether each worker gets a GPU, if the cluster has enough.

    Raises:
        ArgumentError: Ray is not installed or does not respond, a part cannot be computed, or a worker ended.
    """
    ray = _ray()
    with _running(ray, workers, address):
        has_gpus = gpus and ray.cluster_resources().get("GPU", 0) >= workers
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        numbers = ray.data.from_items(
            [{"part": number} for number in missing], override_num_blocks=min(len(missing), 64 * workers)
        )
        done = numbers.map_batches(
            _Worker,
            fn_constructor_args=(work,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if has_gpus else 0,
        )
        try:
            for row in done.iter_rows():
                if row["error"]:
                    raise ArgumentError(row["error"])
                yield int(row["part"])
        except ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[-1]
            raise ArgumentError(
                f"a Ray worker ended: {shortened(said, 300)}. Run the same command again to resume"
            ) from error


class _Worker:
    """Loads the model and computes parts. Errors in the data are returned as a sentence, to stop the work."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._answers = work.job.load()
        self._reader = Reader(work.found)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (number,) = batch["part"].tolist()
        said = ""
        try:
            self._work.do(number, self._answers, self._reader)
        except HeadwiseError as error:
            said = str(error)
        return {"part": [number], "error": [said]}


def _ray() -> Any:
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ArgumentError('--engine ray needs the package ray: pip install "headwise[ray]"') from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray


@contextlib.contextmanager
def _running(ray: Any, workers: int, address: str | None) -> Iterator[None]:
    """A connection to a cluster, or a new local Ray; an existing connection is used and left open."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own = {"num_cpus": workers, "object_store_memory": _STORE, "include_dashboard": False}
    try:
        ray.init(
            address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **({} if address else own)
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())
        where = f"the Ray cluster at {address} does not respond" if address else "Ray cannot be started here"
        raise ArgumentError(f"{where}: {shortened(said, 200)}") from error
    try:
        yield
    finally:
        ray.shutdown()
