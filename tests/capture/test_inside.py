"""Which passes are inside of `watch` and `edit`, and that nothing is left behind, however contexts overlap."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import pickle
import queue
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch._dynamo import eval_frame
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import headwise
from headwise import edits
from headwise.capture import changes
from headwise.errors import EditRefused
from headwise.records import Seen

X = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(0))
Job = Callable[[], Tensor]


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()


def ablated(model: nn.Module, head: int = 0) -> Any:
    return headwise.edit(model, edits.ablate("self_attn", heads=head))


@pytest.fixture
def model() -> nn.Module:
    return layer()


@pytest.fixture
def wanted(model: nn.Module) -> dict[str, Tensor]:
    """The outputs of the model: as it is, and with each head ablated."""
    found = {"plain": model(X)}
    for head in range(2):
        with ablated(model, head):
            found[f"head {head}"] = model(X)
    return found


def by_thread(job: Job) -> Tensor:
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.append(job()))
    thread.start()
    thread.join()
    return found[0]


def by_executor(job: Job) -> Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(job).result()


def by_pool(job: Job) -> Tensor:
    with ThreadPool(1) as pool:
        return pool.map(lambda _: job(), [0])[0]


def by_asyncio(job: Job) -> Tensor:
    async def run() -> Tensor:
        return await asyncio.to_thread(job)

    return asyncio.run(run())


def by_framework(job: Job) -> Tensor:
    """A worker that was started before takes the context along, as anyio does."""
    context = contextvars.copy_context()
    with Worker() as worker:
        return worker(lambda: context.run(job))


class Worker:
    """A thread that gets its jobs by a queue."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self.results: queue.Queue[Any] = queue.Queue()

    def __enter__(self) -> Worker:
        self.thread = contextvars.Context().run(threading.Thread, target=self.run)
        contextvars.Context().run(self.thread.start)
        return self

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.results.put(self.result_of(job))

    def result_of(self, job: Callable[[], Any]) -> Any:
        try:
            return job()
        except EditRefused as error:
            return error

    def __call__(self, job: Callable[[], Any]) -> Any:
        self.jobs.put(job)
        result = self.results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def __exit__(self, *_: object) -> None:
        self.jobs.put(None)
        self.thread.join()


WAYS = [by_thread, by_executor, by_pool, by_asyncio, by_framework]


@pytest.mark.parametrize("run", WAYS)
def test_a_job_belongs_to_where_it_was_started(run: Callable[[Job], Tensor], model: nn.Module, wanted: Any) -> None:
    with headwise.watch(model) as seen, ablated(model):
        assert torch.equal(run(lambda: model(X)), wanted["head 0"])
        assert torch.equal(model(X), wanted["head 0"])
    assert len(seen) == 2
    assert [record.site.call for record in seen if record.site] == [0, 1]
    assert torch.equal(run(lambda: model(X)), wanted["plain"])


def test_a_worker_that_a_pool_started_inside_runs_the_jobs_of_others_as_they_are(model: nn.Module, wanted: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        with headwise.watch(model) as seen, ablated(model):
            assert torch.equal(pool.submit(model, X).result(), wanted["head 0"])
            elsewhere = contextvars.Context().run(pool.submit, model, X)
            assert torch.equal(elsewhere.result(), wanted["plain"])
        assert torch.equal(pool.submit(model, X).result(), wanted["plain"])
    assert len(seen) == 1


class Threaded(nn.Module):
    """A model with a layer that another thread runs."""

    def __init__(self, run: Callable[[Job], Tensor]) -> None:
        super().__init__()
        self.there, self.run = layer(), run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(lambda: self.there(x))


def test_a_layer_in_a_thread_that_is_started_is_edited_and_seen(wanted: Any) -> None:
    model = Threaded(by_thread)
    with headwise.watch(model) as seen, headwise.edit(model, edits.ablate("there.self_attn", heads=0)):
        assert torch.equal(model(X), wanted["head 0"])
    assert seen.layers == ["there.self_attn"]


def test_a_layer_in_a_thread_that_cannot_be_followed_is_refused_or_missed() -> None:
    with Worker() as worker:
        model = Threaded(worker)
        with (
            pytest.raises(
                EditRefused, match=r"^there.* cannot be edited: it ran in another thread, in a job that could"
            ),
            headwise.edit(model, edits.ablate("*", heads=0)),
            contextlib.suppress(EditRefused),
        ):
            model(X)
        with headwise.watch(model) as seen:
            model(X)
    assert len(seen) == 0
    assert {(site.name, site.status) for site in seen.coverage()} >= {("there", "missed")}


def test_work_that_was_started_elsewhere_is_left_alone(model: nn.Module, wanted: Any) -> None:
    with Worker() as worker, headwise.watch(model) as seen, ablated(model):
        model(X)
        assert torch.equal(worker(lambda: model(X)), wanted["plain"])
        worker(lambda: model.self_attn(X, X, X))  # type: ignore[operator]
    assert len(seen) == 1
    assert not seen.coverage().missed


def test_two_watches_of_which_the_first_ends_first(model: nn.Module) -> None:
    other = layer()
    first, second = headwise.watch(model), headwise.watch(other)
    one, two = first.__enter__(), second.__enter__()
    first.__exit__(None)
    other(X)
    model(X)
    second.__exit__(None)
    assert (len(one), len(two)) == (0, 1)
    nothing_is_left()


def test_a_function_mode_that_was_entered_inside_stays(model: nn.Module) -> None:
    class Counting(TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    watched = headwise.watch(model)
    watched.__enter__()
    with Counting() as counting:
        watched.__exit__(None)
        torch.add(X, X)
        assert counting.count
    nothing_is_left()


def test_two_threads_watch_a_model_that_generates() -> None:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 64, (1, 8))
    before = set(vars(model))
    first, second = threading.Event(), threading.Event()
    found: list[Seen] = []

    def run_first() -> None:
        with headwise.watch(model) as seen:
            model.generate(ids, max_new_tokens=2, do_sample=False)
            first.set()
            second.wait(30)
        found.append(seen)

    def run_second() -> None:
        first.wait(30)
        with headwise.watch(model) as seen:
            second.set()
            threads[0].join()
            model.generate(ids, max_new_tokens=2, do_sample=False)
        found.append(seen)

    threads = [threading.Thread(target=run) for run in (run_first, run_second)]
    for thread in threads:
        thread.start()
    threads[1].join()
    assert [[record.shape for record in seen] for seen in found] == [[(1, 4, 9, 9)] * 2] * 2
    assert set(vars(model)) == before
    pickle.dumps(model)
    nothing_is_left()


def test_continuous_batching_cannot_be_edited(model: nn.Module) -> None:
    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    with (
        pytest.raises(EditRefused, match="generate_batch cannot be edited"),
        headwise.edit(gpt2, edits.ablate("*", heads=0)),
    ):
        gpt2.generate_batch([[1, 2]])


def nothing_is_left() -> None:
    assert _get_current_function_mode_stack() == []
    assert eval_frame._stance.stance == "default"
    assert changes._changes == {}
    assert threading.Thread.start.__module__ == "threading"
    assert ThreadPoolExecutor.submit.__module__ == "concurrent.futures.thread"
    assert "apply_async" not in vars(ThreadPool)


# 200 contexts at random: tasks, threads and generators that overlap, nest, fail, and change what they do.


class Switching(nn.Module):
    """Attention whose sites alternate ways, masks and options."""

    def __init__(self) -> None:
        super().__init__()
        self.way, self.dropout = 0, nn.Dropout(0.5)

    def forward(self, x: Tensor, way: int) -> Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(way % 3)
        if way % 4 == 0:
            return nn.functional.scaled_dot_product_attention(
                x, x, x, attn_mask=allowed[None], scale=0.1 * (1 + way % 2)
            )
        if way % 4 == 1:
            return (x @ x.mT / 4).masked_fill(~allowed, -torch.inf).softmax(-1) @ x
        heads = x[:, None]
        mask = headwise.masks.window(2, way % 2) if way % 4 == 2 else None
        return headwise.attention(heads, heads, heads, mask=mask)[:, 0]


class Work:
    """Passes inside of contexts of its own, which may fail."""

    def __init__(self, models: list[nn.Module], plain: dict[tuple[int, int], Tensor], seed: int) -> None:
        self.chosen = random.Random(seed)
        self.at, self.plain, self.seed = self.chosen.randrange(len(models)), plain, seed
        self.model, self.passes = models[self.at], 0
        self.factor = self.chosen.choice([1.0, 2.0, -3.0])
        self.stack = contextlib.ExitStack()

    def steps(self) -> Iterator[Callable[[], None]]:
        yield self.enter
        for _ in range(self.chosen.randrange(1, 5)):
            yield self.run
        yield self.leave

    def enter(self) -> None:
        scaled = headwise.edit(self.model, edits.output("*", lambda out, where: out * self.factor))
        contexts = [scaled, headwise.watch(self.model)]
        self.chosen.shuffle(contexts)
        entered = [self.stack.enter_context(context) for context in contexts]
        self.seen = next(each for each in entered if isinstance(each, Seen))
        self.edited = self.factor

    def run(self) -> None:
        self.model.train(self.chosen.random() < 0.5)
        way = self.chosen.randrange(12)
        assert torch.allclose(self.model(X, way), self.plain[self.at, way] * self.factor, atol=1e-5), (self.seed, way)
        self.passes += 1

    def leave(self) -> None:
        error = ZeroDivisionError if self.chosen.random() < 0.3 else None
        if self.stack.__exit__(error, None, None):
            raise AssertionError("an exception was swallowed")
        assert len(self.seen) == self.passes, self.seed
        self.passed = self.passes


def test_contexts_at_random_keep_apart_and_leave_nothing() -> None:
    models: list[nn.Module] = [Switching() for _ in range(3)]
    plain = {(at, way): models[at](X, way) for at in range(3) for way in range(12)}
    works = [Work(models, plain, seed) for seed in range(200)]
    errors: list[BaseException] = []

    def thread(work: Work) -> None:
        try:
            for step in work.steps():
                step()
        except BaseException as error:
            errors.append(error)

    def generator(work: Work) -> Iterator[None]:
        for step in work.steps():
            step()
            yield

    async def task(work: Work) -> None:
        for step in work.steps():
            step()
            await asyncio.sleep(0)

    async def stream(work: Work) -> AsyncIterator[None]:
        for step in work.steps():
            step()
            yield

    async def consumer(work: Work) -> None:
        async for _ in stream(work):
            await asyncio.sleep(0)

    async def tasks(*given: list[Work]) -> None:
        await asyncio.gather(*map(task, given[0]), *map(consumer, given[1]))

    threads = [threading.Thread(target=thread, args=(work,)) for work in works[:50]]
    for each in threads:
        each.start()
    asyncio.run(tasks(works[50:100], works[100:125]))
    generators = [generator(work) for work in works[125:]]
    while generators:  # some go on, some begin, in turns
        each = generators[random.Random(len(generators)).randrange(len(generators))]
        if next(each, works) is works:
            generators.remove(each)
    for each in threads:
        each.join()
    assert not errors
    assert all(work.passed for work in works)
    nothing_is_left()
    assert all(not model._forward_hooks and not model._forward_pre_hooks for model in models)
    kept = [weakref.ref(work.seen.records[0]) for work in works]
    works.clear()
    del each, threads
    gc.collect()  # threads and tasks are in cycles
    assert not any(ref() for ref in kept)
