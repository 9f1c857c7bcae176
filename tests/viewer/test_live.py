"""The model behind a live page, through its server: the numbers are those of the model alone and of `headwise.edit`."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch

import headwise
from headwise import edits
from headwise.capture.pretrained import load_pieces
from headwise.cli.files import NamedText
from headwise.cli.live import live_causal
from headwise.errors import ArgumentError
from headwise.viewer import inputs_of
from headwise.viewer import live as live_module
from headwise.viewer.changes import Asked, Change, read_asked
from headwise.viewer.live import Live, LiveModel
from headwise.viewer.predictions import compared
from headwise.viewer.server import serving, serving_live

from .conftest import ANT, PIG, PROMPT, look, record
from .test_server import Client


@pytest.fixture
def client(live_url: str) -> Client:
    return Client(live_url)


@pytest.fixture(scope="module")
def model(copying_model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(copying_model).eval()


@pytest.fixture(scope="module")
def ids(copying_model: Path) -> torch.Tensor:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(copying_model)(PROMPT, return_tensors="pt")["input_ids"]


def ablated(layer: int, head: int) -> dict[str, Any]:
    return {"kind": "ablate", "layer": layer, "heads": [head]}


def blocked(layer: Any, heads: Any, query: int = PIG, key: int = ANT) -> dict[str, Any]:
    return {"kind": "block", "layer": layer, "heads": heads, "query": query, "key": key}


def ask(client: Client, *changes: dict[str, Any], prompt: str = PROMPT, **more: Any) -> dict[str, Any]:
    """The facts of a run."""
    asked = {"prompt": prompt, "edits": list(changes), **more}
    status, headers, body = client.ask("run", "POST", json.dumps(asked).encode())
    assert (status, headers["Content-Type"]) == (200, "application/json"), body
    return json.loads(body)


def listed(facts: dict[str, Any], run: str) -> dict[int, float]:
    return {each["id"]: each[run] for each in facts["live"]["predictions"]["tokens"]}


def check(facts: dict[str, Any], run: str, logits: torch.Tensor) -> None:
    """That the page lists the probabilities of these logits [V]."""
    expected = logits.double().softmax(-1)
    for token, share in listed(facts, run).items():
        assert share == pytest.approx(float(expected[token]), abs=1e-6)


# --- The numbers ------------------------------------------------------------------------------------------------------


def test_the_plain_probabilities_are_those_of_the_model_alone(client: Client, model: Any, ids: torch.Tensor) -> None:
    facts = ask(client)
    with torch.no_grad():
        logits = model(ids).logits[0]
    for run in ("plain", "edited"):
        check(facts, run, logits[-1])
    (first, *_) = facts["live"]["predictions"]["tokens"]
    assert (first["text"], first["plain"] > 0.9) == ("ant", True)
    assert facts["live"]["predictions"]["distance"] == facts["live"]["predictions"]["divergence"] == 0
    assert facts["axes"][0]["labels"] == PROMPT.split()
    check(ask(client, position=4), "plain", logits[4])
    assert ask(client, position=4)["live"]["predictions"]["position"] == 4


def test_edited_probabilities_are_those_of_edit(client: Client, model: Any, ids: torch.Tensor, induction: int) -> None:
    layer = "model.layers.1.self_attn"
    cases = [
        ([ablated(1, induction)], [edits.ablate(layer, heads=[induction])]),
        ([ablated(1, 0), ablated(1, 1)], [edits.ablate(layer)]),
        ([{"kind": "ablate", "layer": "all", "heads": "all"}], [edits.ablate("*")]),
        ([blocked(1, [induction])], [edits.block(layer, queries=PIG, keys=ANT, heads=[induction])]),
        ([blocked(1, "all")], [edits.block(layer, queries=PIG, keys=ANT)]),
        ([blocked("all", "all")], [edits.block("*", queries=PIG, keys=ANT)]),
        (
            [ablated(0, 0), blocked("all", "all", 6, 2)],
            [edits.ablate("model.layers.0.self_attn", heads=[0]), edits.block("*", queries=6, keys=2)],
        ),
    ]
    for asked, same in cases:
        facts = ask(client, *asked)
        with torch.no_grad():
            check(facts, "plain", model(ids).logits[0, -1])
            with headwise.edit(model, same):
                check(facts, "edited", model(ids).logits[0, -1])


def test_a_blocked_edge_is_masked_in_the_attention_that_is_shown(client: Client, induction: int) -> None:
    asked = {"input": 0, "stack": 0, "layer": 1, "rows": "0-8", "cols": "0-8", "height": 8, "width": 8, "how": "max"}
    plain = client.tile(**asked, head=induction, run=ask(client)["live"]["run"])
    facts = ask(client, blocked(1, [induction]))
    edited = client.tile(**asked, head=induction, run=facts["live"]["run"])
    other = client.tile(**asked, head=1 - induction, run=facts["live"]["run"])
    assert plain[PIG, ANT] > 0.5
    assert np.isnan(edited[PIG, ANT])
    assert np.nansum(edited[PIG]) == pytest.approx(1, abs=1e-5)
    assert not np.isnan(other[PIG, ANT])
    np.testing.assert_allclose(edited[:PIG], plain[:PIG], atol=1e-6)

    # A query without any key is counted.
    assert ask(client, blocked(0, [0], 0, 0))["live"]["emptied"] == 1


def test_distances_of_probabilities_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    found = compared(p.log(), q.log(), str, top=1)
    assert found["distance"] == pytest.approx(0.25)
    assert found["divergence"] == pytest.approx(0.25 * np.log(2))  # 0.5 ln 2 - 0.25 ln 2
    assert [each["id"] for each in found["tokens"]] == [0, 2]  # the likeliest of each
    unlike = compared(torch.tensor([0.0, -torch.inf]), torch.tensor([-torch.inf, 0.0]), str)
    assert (unlike["distance"], unlike["divergence"]) == (1.0, None)  # infinite, which JSON has not


def test_runs_are_kept_for_a_while(live: Live, copying_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = live.facts(Asked(PROMPT, (Change("ablate", 0, (0,)),)))
    again = live.facts(Asked(PROMPT, (Change("ablate", 0, (0,)),), 3))
    assert first["live"]["run"] == again["live"]["run"]
    assert live.facts(Asked(PROMPT, (Change("ablate", 0, (1,)),)))["live"]["run"] != first["live"]["run"]

    # Old runs are dropped.
    monkeypatch.setattr(live_module, "KEPT_BYTES", 1)
    small = live_causal(str(copying_model), NamedText("TEXT", PROMPT, PROMPT), None)
    runs = [small.facts(Asked(PROMPT, (Change("ablate", 0, (head,)),)))["live"]["run"] for head in range(2)]
    assert small.shown(runs[1]).inputs
    small.facts(Asked("pig cat"))
    with pytest.raises(ArgumentError, match="run: 1 is not kept any more"):
        small.shown(runs[0])


def test_the_text_of_a_token_has_its_space(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    for name, before, decoder in (
        ("bytes", "\u0120", decoders.ByteLevel()),
        ("pieces", "\u2581", decoders.Metaspace()),
    ):
        words = [f"{before}cat", "cat", "\u00e2", "\u010a", "<unknown>"]  # in the middle a byte of a longer character
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Whitespace(), decoder
        PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unknown>").save_pretrained(tmp_path / name)
        text_of = load_pieces(str(tmp_path / name))
        assert [text_of(0), text_of(1), text_of(2)] == [" cat", "cat", "\u00e2"]
        assert text_of(99) == "<|99|>"  # a vocabulary that was padded to a round number
    assert load_pieces(str(tmp_path / "bytes"))(3) == "\n"


# --- Requests that are refused ----------------------------------------------------------------------------------------

BAD = {  # the request's body -> what the sentence must say
    "no JSON": (b"{", "expected JSON"),
    "no UTF-8": (b"\xff", "expected JSON"),
    "nested too deeply": (b"[" * 100_000, "nested too deeply"),
    "no object": (b"[]", "expected a JSON object with a prompt. Received: list"),
    "no prompt": (b"{}", "prompt: expected a text. Received: None"),
    "an empty prompt": ({"prompt": " \n"}, "The prompt is empty"),
    "too many characters": ({"prompt": "ant " * 5001}, "at most 20,000 characters. Received: 20,004"),
    "too many tokens": ({"prompt": "ant " * 65}, "at most 64 tokens. Received: 65"),
    "no Unicode": (b'{"prompt": "a \\ud800"}', "valid Unicode"),
    "edits that are no list": ({"edits": {}}, "edits: expected a list of at most 100"),
    "too many edits": ({"edits": [ablated(0, 0)] * 101}, "at most 100. Received: 101"),
    "another kind of edit": ({"edits": [{"kind": "steer"}]}, '"ablate" or "block"'),
    "an edit that is no object": ({"edits": [3]}, "Received: 3"),
    "no layer": ({"edits": [{"kind": "ablate", "heads": [0]}]}, 'layer: expected a whole number from 0, or "all"'),
    "a layer that there is not": ({"edits": [ablated(2, 0)]}, "layers are numbered 0 … 1. Received: layer=2"),
    "a negative layer": ({"edits": [ablated(-1, 0)]}, "layer: expected a whole number"),
    "a head that there is not": ({"edits": [ablated(0, 2)]}, "self_attn are numbered 0 … 1. Received: 2"),
    "a head of all layers": ({"edits": [blocked("all", [2])]}, "self_attn are numbered 0 … 1. Received: 2"),
    "no heads": ({"edits": [{"kind": "ablate", "layer": 0, "heads": []}]}, "heads: expected a list of numbers"),
    "a truth as a head": ({"edits": [{"kind": "ablate", "layer": 0, "heads": [True]}]}, "expected a whole number"),
    "no key": ({"edits": [{**blocked(0, "all"), "key": None}]}, "key: expected a whole number from 0. Received: None"),
    "a query outside": ({"edits": [blocked(0, "all", 8, 0)]}, "query: the prompt has 8 tokens, numbered 0 … 7"),
    "a key outside": ({"edits": [blocked("all", "all", 0, 8)]}, "Received: key=8"),
    "a position outside": ({"position": 8}, "position: the prompt has 8 tokens"),
    "a negative position": ({"position": -1}, "position: expected a whole number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_a_sentence(client: Client, case: str) -> None:
    body, expected = BAD[case]
    sent = body if isinstance(body, bytes) else json.dumps({"prompt": PROMPT, **body}).encode()
    status, why = client.refusal("run", "POST", sent)
    assert status == 400
    assert expected in why
    assert ask(client)["live"]["prompt"] == PROMPT  # and it goes on


def test_a_long_body_is_refused_before_it_is_read(client: Client) -> None:
    assert client.refusal("run", "POST", b" " * (2**18 + 1)) == (
        413,
        "run: expected at most 262,144 bytes. Received: more",
    )
    assert client.refusal("run")[0] == 405


def test_tiles_name_their_run(client: Client) -> None:
    asked = urlencode({"input": 0, "stack": 0, "layer": 0, "head": 0, "rows": "0-8", "cols": "0-8"})
    assert "expected run=… in the address" in client.refusal(f"tile?{asked}")[1]
    assert client.refusal(f"stats?run=none&{asked}") == (400, "run: none is not kept any more. Reload the page")
    status, _, body = client.ask(f"stats?run={ask(client)['live']['run']}&{asked}")
    assert (status, len(json.loads(body)["entropy"])) == (200, 2)


def test_a_page_without_a_model_runs_nothing() -> None:
    with serving(inputs_of(look(record())), title="A page") as url:
        status, why = Client(url).refusal("run", "POST", b"{}")
    assert (status, why) == (404, "Unknown path 'run': expected tile, mix, terms, stats.")


def slow(live: Live, most: list[int]) -> Live:
    """The same model; each run takes a while, and `most` gets how many run at once."""
    running: list[int] = []

    def run(ids: torch.Tensor) -> torch.Tensor | None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return live.model.run(ids)

    return Live(LiveModel(live.model.module, live.model.encode, run, live.model.text_of), title="slow")


def test_one_run_at_a_time(live: Live) -> None:
    """Two readers ask at once: each gets the answer to its own question, and the model runs once at a time."""
    most: list[int] = []
    found: dict[int, dict[str, Any]] = {}
    with serving_live(slow(live, most), PROMPT) as url:

        def reader(head: int) -> None:
            found[head] = ask(Client(url), ablated(1, head))

        threads = [threading.Thread(target=reader, args=(head,)) for head in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(most) == 1
    assert len(most) == 3  # the prompt, and it with each edit
    for head in range(2):
        expected = live.facts(Asked(PROMPT, (Change("ablate", 1, (head,)),)))["live"]["predictions"]
        assert found[head]["live"]["predictions"] == expected


def test_a_model_that_fails_does_not_end_the_server(live: Live, capfd: pytest.CaptureFixture[str]) -> None:
    def run(ids: torch.Tensor) -> torch.Tensor | None:
        if ids.shape[1] == 2:
            raise RuntimeError("out of luck")
        return live.model.run(ids)

    with serving_live(Live(LiveModel(live.model.module, live.model.encode, run), title="failing"), PROMPT) as url:
        status, why = Client(url).refusal("run", "POST", json.dumps({"prompt": "cat owl"}).encode())
        assert (status, why) == (500, "The server failed: RuntimeError: out of luck")
        assert ask(Client(url))["live"]["predictions"]["tokens"][0]["text"] == "2"  # no names of tokens were given


def test_changes_are_read_once_each() -> None:
    body = json.dumps({"prompt": "a", "edits": [ablated(0, 1), ablated(0, 1), blocked("all", [2, 1, 2], 3, 1)]})
    asked = read_asked(body.encode())
    assert asked.changes == (Change("ablate", 0, (1,)), Change("block", None, (1, 2), 3, 1))
    assert [each.told() for each in asked.changes] == [ablated(0, 1), blocked("all", [1, 2], 3, 1)]
