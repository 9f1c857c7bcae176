"""The numbers of a profile, by hand; and that batches, windows and interruptions change nothing."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import headwise
from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError, DtypeError, FileError, RecordError
from headwise.profiles import MEASURES, Profile, load, measuring, profile, windows
from headwise.profiles.resuming import partial
from headwise.text import Tokens
from headwise.viewer.profiled import collect_facts
from headwise.viewer.statistics import compute_statistics

from .tiny import Attend, code, encode, tiny

TEXTS = [
    f"the {a} saw a {b} , and the {a} ran {n} miles ." * repeat
    for n, (a, b) in enumerate([("cat", "dog"), ("fox", "hen"), ("man", "car"), ("tree", "bird")] * 5)
    for repeat in (1, 3)
]


def near(found: object, expected: object) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-6)  # type: ignore[arg-type]


@pytest.fixture
def abab() -> Profile:
    """Of [CLS] a b a b [SEP], whose four words are the queries."""
    return profile(tiny(), ["a b a b"], length=16)


def test_a_head_on_the_token_before(abab: Profile) -> None:
    head = abab[0, 0]
    assert (head.rows, abab.texts, abab.windows, abab.tokens) == (4, 1, 1, 6)
    near([head.means["entropy"], head.means["distance"], head.means["keys_needed"]], [0, 1, 1])
    near([head.means["special"], head.means["largest"], head.means["first_visible"]], [1 / 4, 3 / 4, 1 / 4])
    near(head.offsets["-1"], 3 / 4)  # the first word looks at [CLS], which is no text
    near(sum(head.offsets.values()), 3 / 4)
    near([head.patterns["duplicate_token"], head.patterns["induction"]], [0, 1])
    near([head.patterns["block_previous_token"], head.patterns["block_induction"]], [1, 0])
    near(head.patterns["previous_token"], 1)  # all but [CLS] have a token before them, and look at it
    assert head.supports == {"previous_token": 5, "duplicate_token": 2, "induction": 2}
    assert head.kind == ("previous token", pytest.approx(1.0))
    assert [(pair.query, pair.key, round(pair.weight, 4), pair.error) for pair in head.pairs()] == [
        ("b", "a", 2.0, 0.0),
        ("a", "b", 1.0, 0.0),
    ]


def test_the_previous_token_score_is_that_of_the_analyses_the_summary_and_the_page() -> None:
    texts = ["a b a b c d e", "c a"]
    model = tiny(sharpness=3.0)
    found = profile(model, texts, length=16, batch=2)
    totals, count = torch.zeros(2), 0
    for text in texts:
        tokens = model.encode(text, None)
        with torch.no_grad(), headwise.watch(model.model, tokens=tokens) as seen:
            model.model(torch.tensor([tokens.ids]))
        rows = len(tokens.ids) - 1
        shown = compute_statistics(seen[0], {0: tokens}, kind="self")[0]["previous"]
        assert [row.previous for row in seen.summary()] == pytest.approx(shown, rel=1e-4)
        near(headwise.analyses.pattern_scores(seen, 1).previous_token[0], [row.previous for row in seen.summary()])
        totals, count = totals + rows * torch.tensor([row.previous for row in seen.summary()]), count + rows
    near([found[0, head].patterns["previous_token"] for head in range(2)], totals / count)


def test_a_file_of_an_older_version_does_not_know_it(abab: Profile, tmp_path: Path) -> None:
    for sums in abab.layers:
        del sums.numbers["previous"], sums.numbers["previous_rows"]
    abab.save(tmp_path / "old.hw")
    head = load(tmp_path / "old.hw")[0, 0]
    assert math.isnan(head.patterns["previous_token"])
    assert head.kind == ("previous token", pytest.approx(1.0))  # of its weight on the text
    assert collect_facts(load(tmp_path / "old.hw"), title="")["heads"][0]["patterns"]["previous_token"] is None


def test_unknown_tokens_are_no_repetition() -> None:
    text = "a b a b a b"
    known = tiny()

    def encode(text: str, limit: int | None) -> Tokens:
        tokens = known.encode(text, limit)
        return dataclasses.replace(tokens, unknown=tuple(label == "a" for label in tokens.labels))

    head = profile(dataclasses.replace(known, encode=encode), [text], length=16)[0, 1]
    assert head.supports["duplicate_token"] == 2  # the second b and the third


def test_a_head_on_everything_alike(abab: Profile) -> None:
    head = abab[0, 1]
    near([head.means["entropy"], head.means["distance"]], [math.log(6), (11 + 9 + 9 + 11) / 24])
    near([head.means["special"], head.means["largest"]], [2 / 6, 1 / 6])
    near([head.offsets["0"], head.offsets["-1"], head.offsets["+3"]], [1 / 6, 3 / 24, 1 / 24])
    near([head.patterns["duplicate_token"], head.patterns["induction"]], [1 / 6, 1 / 6])
    expected = {"start": 1 / 6, "separator": 1 / 6, "function word": 2 / 6, "word": 2 / 6}
    for name, share in head.classes.items():
        near([share, head.even_classes[name], head.classes_from("word")[name]], [expected.get(name, 0)] * 3)
    assert head.relative_entropy == pytest.approx(1.0)


def test_the_best_example_is_the_query_with_the_most_surprising_weight(abab: Profile) -> None:
    (example,) = abab[0, 0].examples
    tokens = example.window.tokens
    assert (tokens.labels[example.query], tokens.labels[example.key]) == ("b", "a")
    assert example.score == pytest.approx(math.log(6), abs=1e-4)
    assert example.weights == (0, 1, 0, 0, 0, 0)
    assert abab[0, 1].examples == []  # 1/6 log(6/6) = 0: nothing is surprising there


def test_histograms_count_every_query_once() -> None:
    found = profile(tiny(), TEXTS, length=16)
    for head in found.heads():
        for measure in MEASURES:
            counts, edges = head.histogram(measure.name), found.edges(measure.name)
            assert sum(counts) == head.rows
            assert len(edges) == len(counts) + 1
    assert found[0, 0].histogram("entropy")[0] == found[0, 0].rows


@pytest.mark.parametrize(
    ("ahead", "kind", "score"),
    [
        (-1, "previous token", 1),
        (1, "next token", 1),
        (0, "itself", 1),
        (2, "neighbours", (5 + 3 / 9) / (5 + 7 / 9)),  # the last word has no such key, and looks at all alike
    ],
)
def test_the_kind_follows_from_where_it_looks(ahead: int, kind: str, score: float) -> None:
    head = profile(tiny(ahead=ahead), ["one two three four five six seven"], length=16)[0, 0]
    assert head.kind == (kind, pytest.approx(score))
    assert max(head.offsets, key=head.offsets.__getitem__) == (f"{ahead:+d}" if ahead else "0")


def test_a_head_on_the_same_token_elsewhere() -> None:
    head = profile(tiny(ahead=-4), ["a b c d a b c d e f"], length=16)[0, 0]
    # a, b, c, d are each there twice; of these eight the last four look at their double, c, d and two others at no text
    assert head.kind[0] == "same token"
    near(head.patterns["duplicate_token"], 1)


def test_an_induction_head_is_called_so_and_chance_is_not() -> None:
    text = "a b c d e f g h i j a b c d e f g h i j"  # nine tokens before is what followed this one ten before
    head = profile(tiny(ahead=-9), [text], length=32)[0, 0]
    assert head.kind == ("induction", pytest.approx(1))
    # Of the second a … j, each sees 20 words, [CLS] and [SEP], one of which is it.
    near(float(head.sums.numbers["induction_even"]) / head.supports["induction"], 1 / 22)
    few = profile(tiny(ahead=-9), [text[:27]], length=32)[0, 0]  # the text ends at the second d
    assert (few.supports["induction"], few.patterns["induction"]) == (4, pytest.approx(1))
    assert few.kind[0] != "induction"


def test_heads_computed_one_by_one_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    together = profile(tiny(), TEXTS, length=16)
    monkeypatch.setattr(measuring, "CELLS", 1)
    for name, x in profile(tiny(), TEXTS, length=16).layers[0].numbers.items():
        # Sums of a thousand float32 weights in another order.
        torch.testing.assert_close(x, together.layers[0].numbers[name], rtol=1e-6, atol=1e-4, msg=name)


def test_few_examples_are_the_best_of_many() -> None:
    few, many = (profile(tiny(5.0), TEXTS, length=16, batch=60, kept=kept)[0, 0].examples for kept in (3, 50))
    assert len(many) > 5
    assert few == many[:3]


def test_a_vocabulary_without_capitals_names_its_tokens_so() -> None:
    model = dataclasses.replace(tiny(), encode=lambda text, limit: uncased(text, limit))
    assert {pair.key for pair in profile(model, ["The cat the cat Bob cat"], length=16)[0, 0].pairs()} == {
        "the",
        "cat",
        "Bob",
    }


def uncased(text: str, limit: int | None) -> Tokens:
    found = encode(text, limit)
    return dataclasses.replace(found, ids=encode(text.lower(), limit).ids)


def test_padding_and_batches_change_nothing() -> None:
    one, many = (profile(tiny(), TEXTS[:12], length=16, batch=batch) for batch in (1, 300))
    assert (one.texts, one.windows, one.tokens) == (many.texts, many.windows, many.tokens)
    for name, x in one.layers[0].numbers.items():
        torch.testing.assert_close(x, many.layers[0].numbers[name], rtol=1e-6, atol=1e-6, msg=name)
    for a, b in zip(one.heads(), many.heads(), strict=True):
        assert a.examples == b.examples
        assert [pair.query for pair in a.pairs()] == [pair.query for pair in b.pairs()]


def test_an_interrupted_run_goes_on_to_the_same_file(tmp_path: Path) -> None:
    def interrupted() -> Iterator[str]:
        yield from TEXTS[:25]
        raise KeyboardInterrupt

    options = {"length": 16, "batch": 20, "name": "corpus"}
    profile(tiny(), TEXTS, out=tmp_path / "whole.hw", **options)
    out = tmp_path / "parts.hw"
    with pytest.raises(KeyboardInterrupt):
        profile(tiny(), interrupted(), out=out, every=0, **options)
    assert not out.exists()
    checkpoint = load(partial(out))
    assert 0 < checkpoint.texts < 25
    assert not checkpoint.complete
    found = profile(tiny(), TEXTS, out=out, **options)
    assert found.complete
    assert out.read_bytes() == (tmp_path / "whole.hw").read_bytes()
    assert not partial(out).exists()


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that was interrupted."""

    def interrupted() -> Iterator[str]:
        yield from TEXTS[:25]
        raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("begun") / "profile.hw"
    with pytest.raises(KeyboardInterrupt):
        profile(tiny(), interrupted(), out=out, every=0, length=16, batch=20, name="corpus")
    return partial(out)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"length": 12}, "length=16"),
        ({"batch": 40}, "batch=20"),
        ({"name": "other"}, "corpus=corpus"),
        ({"model": tiny(3.0)}, "other weights"),
        ({"texts": ["another", *TEXTS]}, "another corpus"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(changed: dict, said: str, begun: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.hw"
    shutil.copy(begun, partial(out))
    options = {"length": 16, "batch": 20, "name": "corpus"}
    model, texts = changed.pop("model", tiny()), changed.pop("texts", TEXTS)
    with pytest.raises(ArgumentError, match=said) as error:
        profile(model, texts, out=out, **{**options, **changed})
    assert "delete that file" in str(error.value)


@pytest.mark.parametrize("changed", ["weights", "tokenizer"])
def test_a_resumed_run_has_every_weight_and_the_tokenizer(changed: str, tmp_path: Path) -> None:
    """Some values of each weight were compared, and no file: a profile could be of two models."""

    def model(last: float = 0.0) -> Pretrained:
        made = dataclasses.replace(tiny(), name=str(tmp_path))
        made.model.more = torch.nn.Parameter(torch.zeros(4096))
        made.model.more.data[-2] = last
        return made

    def interrupted() -> Iterator[str]:
        yield from TEXTS[:25]
        raise KeyboardInterrupt

    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    options = {"out": tmp_path / "profile.hw", "length": 16, "batch": 20, "name": "corpus"}
    with pytest.raises(KeyboardInterrupt):
        profile(model(), interrupted(), every=0, **options)
    if changed == "tokenizer":
        (tmp_path / "tokenizer.json").write_text('{"a": 1}', encoding="utf-8")
    with pytest.raises(ArgumentError, match="other weights, options or tokenizer"):
        profile(model(float(changed == "weights")), TEXTS, **options)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert profile(model(), TEXTS, **options).complete


def test_what_is_kept_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Twenty times as many texts, with the same words: the same tensors, and a file of nearly the same size."""
    sizes = []
    for times in (1, 20):
        found = profile(tiny(), TEXTS * times, length=16, out=tmp_path / "profile.hw")
        assert found.texts == times * len(TEXTS)
        sizes.append((tmp_path / "profile.hw").stat().st_size)
        assert all(len(codes) <= 256 for codes in found.layers[0].pairs.codes)
    assert sizes[1] <= 1.05 * sizes[0]


def test_a_very_long_text_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "LONGEST", 30)
    found = profile(tiny(), [" ".join(f"w{number}" for number in range(40))], length=16)
    assert found.texts > 3
    assert found[0, 0].rows == 40


def test_max_tokens_stops_early() -> None:
    found = profile(tiny(), (text for text in TEXTS * 1000), length=16, batch=4, max_tokens=60)
    assert 60 <= found.tokens < 200


def test_what_cannot_be_profiled() -> None:
    for arguments, said in (
        ({"length": 3}, "length: expected 4 to 64"),
        ({"length": 65}, "length: expected 4 to 64"),
        ({"batch": 0}, "batch: expected at least 1"),
        ({"kept": 0}, "kept: expected at least 1"),
    ):
        with pytest.raises(ArgumentError, match=said):
            profile(tiny(), TEXTS, **{"length": 16, **arguments})
    with pytest.raises(ArgumentError, match="there is no text in it"):
        profile(tiny(), ["", "  "], length=16)
    with pytest.raises(DtypeError, match="expected strings"):
        profile(tiny(), [b"bytes"], length=16)  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match=r"Received: profile\[1, 0\]"):
        profile(tiny(), ["a b"], length=16)[1, 0]
    with pytest.raises(RecordError, match="none was recorded"):
        profile(tiny(), TEXTS, length=16, only=["nothing"])


def test_a_file_gives_the_profile_back(abab: Profile, tmp_path: Path) -> None:
    abab.save(tmp_path / "profile.hw")
    found = load(tmp_path / "profile.hw")
    for a, b in zip(abab.heads(), found.heads(), strict=True):
        assert (a.means, a.offsets, a.classes, a.patterns, a.kind) == (
            b.means,
            b.offsets,
            b.classes,
            b.patterns,
            b.kind,
        )
        assert (a.pairs(), a.examples) == (b.pairs(), b.examples)
    assert repr(found) == repr(abab) == "Profile(tiny, 2 heads, 1 texts, 6 tokens)"


def test_files_that_are_no_profiles(abab: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.hw"
    with pytest.raises(FileError, match="there is no file"):
        load(path)
    path.write_text("text")
    with pytest.raises(FileError, match="is not a profile"):
        load(path)
    with pytest.raises(FileError, match="headwise did not write it"):
        abab.save(path)
    path.unlink()
    abab.save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(FileError):
            load(path)
    path.write_bytes(whole[:-7])
    with pytest.raises(FileError, match="cut short"):
        load(path)


def test_records_and_profiles_name_each_other(abab: Profile, tmp_path: Path) -> None:
    import headwise

    abab.save(tmp_path / "profile.hw")
    with pytest.raises(FileError, match=r"is a profile, which holds no records\. headwise view"):
        headwise.load(tmp_path / "profile.hw")
    with torch.no_grad(), headwise.watch(model := Attend()) as seen:
        model(torch.tensor([[code("a"), code("b")]]))
    seen.save(tmp_path / "run.hw")
    with pytest.raises(FileError, match="is not a profile"):
        load(tmp_path / "run.hw")
