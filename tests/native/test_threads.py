"""Several threads at once: each gets what it gets alone. `scripts/sanitize` runs these under the sanitizers too."""

from __future__ import annotations

import gc
import struct
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headwise import attention, masks
from headwise.call import make_call
from headwise.models import unpadded
from headwise.models.bert import Bert, BertConfig
from headwise.native import decoder as native_decoder
from headwise.native import linear as native_linear
from headwise.native.attend import forward
from headwise.native.decoder import Decoder, Read
from headwise.native.dropout import dropout
from headwise.native.linear import Encoder, Layer, Turns, linear, norm_of, pack

WIDTH, HEADS = 32, 2
FREQUENCIES = 100.0 ** (-torch.arange(8) / 8)


def layers(number: int = 2) -> list[Layer]:
    """Layers of random weights."""
    torch.manual_seed(0)
    norm = norm_of(None, None, WIDTH, 1e-5)

    def weights(outputs: int, inputs: int) -> native_linear.Weights:
        return pack(torch.randn(outputs, inputs) / inputs**0.5)

    def layer() -> Layer:
        parts = (weights(3 * WIDTH, WIDTH), weights(WIDTH, WIDTH), weights(48, WIDTH), weights(WIDTH, 48))
        return Layer(*parts, norm, norm)

    return [layer() for _ in range(number)]


def an_encoder() -> Callable[[int], Tensor]:
    """Reads a text of so many tokens."""
    norm, tokens = norm_of(None, None, WIDTH, 1e-5), torch.randn(100, WIDTH)
    encoder = Encoder(layers(), HEADS, "gelu", 0.25, last=norm, frequencies=FREQUENCIES)
    return lambda length: encoder(tokens[:length].clone(), torch.tensor([0, length]))


def a_decoder() -> Callable[[int], Tensor]:
    """Reads the last of so many tokens, behind others that are drawn."""
    norm, table = norm_of(None, None, WIDTH, 1e-5), pack(torch.randn(70, WIDTH))
    options = {"rms": False, "frequencies": FREQUENCIES}
    decoder = Decoder(layers(), HEADS, "gelu", 0.25, 0.25, norm, table, **options)
    drawn, x = torch.randn(2, 2, 1, 100, 1, WIDTH), torch.randn(1, WIDTH)

    def logits(length: int) -> Tensor:
        past, place = torch.zeros(1, 1, length, dtype=torch.int64), torch.tensor([length - 1])
        return decoder.logits(x, Read(*drawn[:, :, :, :length].clone(), past, place))

    return logits


@pytest.mark.parametrize("made", [an_encoder, a_decoder])
def test_what_a_running_call_reads_outlives_it(
    made: Callable[[], Callable[[int], Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a call has its addresses, and has not begun, another thread's needs the angles of more positions."""
    read, called, owners = made(), native_linear.called, []

    def late(function: str, given: bytes) -> None:
        monkeypatch.undo()
        fields = set(struct.unpack(f"={len(given) // 8}Q", given)) - {0}
        owners.extend(weakref.ref(x) for x in gc.get_objects() if type(x) is Tensor and x.data_ptr() in fields)
        other = threading.Thread(target=read, args=(100,))
        other.start()
        other.join()
        assert all(owner() is not None for owner in owners)
        called(function, given)

    for module in (native_linear, native_decoder):
        monkeypatch.setattr(module, "called", late)
    read(12)
    assert len(owners) >= 4  # cos, sin, and what is read and written


def test_angles_that_are_held_do_not_change() -> None:
    frequencies = FREQUENCIES.clone()
    turns = Turns(frequencies)
    few = turns.angles(3)
    before, fields = [x.clone() for x in few], few.fields()
    frequencies.zero_()
    more = turns.angles(50)
    assert len(more.cos) >= 50
    assert all(map(torch.equal, few, before))
    assert few.fields() == fields
    assert torch.equal(more.cos[:3], few.cos[:3])
    assert turns.angles(50) is more


def calls() -> dict[str, Callable[[], list[Tensor]]]:
    """What reads memory that threads share: weights, angles, the blocks of a mask."""
    torch.manual_seed(0)
    encoder, decoder, x = an_encoder(), a_decoder(), torch.randn(70, WIDTH)
    config = BertConfig(vocab_size=30, dim=WIDTH, num_layers=2, num_heads=HEADS, ffn_dim=48, max_positions=64)
    bert, texts = Bert(config).eval(), [[3, 5, 7], list(range(30)), [1]]
    weights, mask = pack(torch.randn(48, WIDTH)), masks.documents(torch.arange(150)[None] // 40) & masks.causal()
    q, k, v = torch.randn(3, 1, 2, 150, 16)
    spoilt = v.clone()
    spoilt[..., 0] = torch.inf

    def reads() -> list[Tensor]:
        with torch.no_grad():
            return unpadded.read(bert, texts)

    def attends() -> list[Tensor]:
        given = [each.clone().requires_grad_() for each in (q, k, v)]
        out, record = attention(*given, mask=mask, slopes=torch.tensor([0.1, 0.2]), record=True, kernel="native")
        found = record.statistics("lse", "received", "top")
        return [out.detach(), *torch.autograd.grad(out.sum(), given), found.lse, found.received, found.top.weights]

    def decodes() -> list[Tensor]:
        return [attention(q[:, :, -1:], k, v, kernel="native")]

    def tells() -> list[Tensor]:  # each piece of the work, that it is not finite
        out = torch.empty_like(q)
        return [out, torch.tensor(forward(make_call(q, k, spoilt), out))]

    def drops() -> list[Tensor]:
        return [dropout(x, 0.5) * 0.0]  # (which numbers are dropped, one generator says for all threads)

    return {
        "encoder": lambda: [encoder(length) for length in (5, 40, 90)],
        "decoder": lambda: [decoder(length) for length in (5, 40, 90)],
        "bert": reads,
        "linear": lambda: [linear(x, weights, "gelu")],
        "attention": attends,
        "few queries": decodes,
        "not finite": tells,
        "dropout": drops,
    }


def test_threads_get_what_they_get_alone() -> None:
    alone = {name: call() for name, call in calls().items()}
    shared, wrong = calls(), []
    together = threading.Barrier(3)

    def run(begin: int) -> None:
        together.wait()
        for turn in range(len(shared)):
            name = list(shared)[(begin + turn) % len(shared)]
            for one, other in zip(shared[name](), alone[name], strict=True):
                if not torch.equal(one.nan_to_num(), other.nan_to_num()):
                    wrong.append(name)

    threads = [threading.Thread(target=run, args=(begin,)) for begin in (0, 0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
