"""Translate, Summarize and Reply: what needs the right place, scores by hand, files of several kinds, bad input."""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headwise import tasks
from headwise.errors import ArgumentError, CheckpointError, DtypeError, FileError
from headwise.models import Bert
from headwise.records import Seen
from headwise.tasks.reply import Reply
from headwise.tasks.rows.sources import open_table
from headwise.tasks.scoring.text_scores import bleu, bleu_tokenizer, chrf, distinct, first_words, rouge, words
from headwise.tasks.summarize import Summarize
from headwise.tasks.text_to_text import Example
from headwise.tasks.translate import Translate, choose_columns
from tests.tasks import problems

SMALL: dict[str, Any] = {
    **{"dim": 64, "heads": 2, "layers": 1, "ffn_dim": 128, "vocab_size": 300, "dropout": 0.0, "beams": 1},
    **{"positions": "sinusoidal", "label_smoothing": 0.0, "monitor_every": 0, "batch_tokens": 512},
}
TINY: dict[str, Any] = {**SMALL, "dim": 16, "ffn_dim": 16, "epochs": 1, "vocab_size": 300}


class TestAttendsToTheRightPlace:
    @pytest.mark.parametrize(
        ("make", "epochs", "place"),
        [
            (problems.copied, 10, lambda i, n: i),
            pytest.param(
                lambda rows, seed=0: problems.reversed_words(rows, lengths=(4, 4), seed=seed),
                12,
                lambda i, n: n - 1 - i,
                marks=pytest.mark.slow,
            ),
        ],
        ids=["copy", "reverse"],
    )
    def test_what_is_written_is_looked_up_in_the_source(
        self, make: Callable[..., dict[str, list[str]]], epochs: int, place: Callable[[int, int], int]
    ) -> None:
        task = Translate.fit(make(1000), **{**SMALL, "epochs": epochs, "lr": 4e-3, "schedule": "cosine"})
        test = make(30, seed=1)
        right = [
            each["translation"] == target
            for each, target in zip(task.predict(test["source"]), test["target"], strict=True)
        ]
        assert sum(right) >= 0.9 * len(right)
        looked = found = 0
        for source, seen in zip(test["source"], task.look(test["source"]), strict=True):
            words_in = source.split()
            record = seen["decoder.layers.0.cross_attention"]
            # Row i has read the word before, and writes word i; the source begins with [BOS].
            best = record.weights()[0].mean(0).argmax(-1)
            for i in range(min(len(words_in), len(best))):
                looked += 1
                found += int(best[i]) == 1 + place(i, len(words_in))
        assert found >= 0.9 * looked


class TestCopies:
    def test_what_is_copied_is_pointed_at(self) -> None:
        """What stands after "say" is written."""
        options = {**SMALL, "source": "source", "target": "target", "positions": "rope", "copies": True}
        task = Summarize.fit(problems.said(1000), **{**options, "epochs": 6, "lr": 4e-3, "schedule": "cosine"})
        test = problems.said(30, seed=1)
        written = [each["summary"] for each in task.predict(test["source"])]
        assert sum(a == b for a, b in zip(written, test["target"], strict=True)) >= 27
        pointed = [int(seen["copy"].weights()[0, 0, 0].argmax()) for seen in task.look(test["source"])]
        assert sum(a == 1 + b for a, b in zip(pointed, test["place"], strict=True)) >= 22  # [BOS] comes first


class TestCheckpoint:
    """A BERT that reads the source."""

    def fit(self, folder: Path, **options: Any) -> Any:
        rows = {"text": ["the cat sat", "the mat 好 sat"] * 6, "summary": ["cat", "mat 好"] * 6}
        given = {"model": str(folder), "heads": 2, "max_source_length": 20, **options}
        return Summarize.fit(rows, **{**TINY, **given})

    def test_its_subwords_and_embeddings_serve_both_sides(self, tiny_bert: Path, tmp_path: Path) -> None:
        task = self.fit(tiny_bert, out=tmp_path / "run", copies=True)
        vocabulary, model = task.source_vocabulary, task.model
        assert task.target_vocabulary is vocabulary
        assert vocabulary.decode(vocabulary.encode(["the running cat."])[0]) == "the running cat."
        assert vocabulary.decode(vocabulary.encode(["好"])[0]) == "好"  # a character that it did not know
        assert model.embedding is None
        assert model.target_embedding is model.encoder.embeddings.word
        assert model.config.dim == 16
        again = Summarize.load(tmp_path / "run")
        assert again.predict(["the cat"]) == task.predict(["the cat"])
        (source,) = again.look(["the cat"])[0].source_tokens
        assert source.labels == ("[CLS]", "the", "cat", "[SEP]")

    def test_the_target_may_have_a_vocabulary_of_its_own(self, tiny_bert: Path, tmp_path: Path) -> None:
        options = {"shared_vocabulary": False, "copies": False, "dim": 32}
        task = self.fit(tiny_bert, out=tmp_path / "run", **options)
        assert task.model.target_embedding.weight.shape == (len(task.target_vocabulary), 32)
        assert Summarize.load(tmp_path / "run").predict(["the cat"]) == task.predict(["the cat"])
        with pytest.raises(ArgumentError, match="copies: expected one vocabulary"):
            self.fit(tiny_bert, **{**options, "copies": True})

    def test_it_learns_more_slowly_than_what_begins_anew(self, tiny_bert: Path) -> None:
        before = Bert.from_pretrained(tiny_bert).layers[0].attention.out.weight
        task = self.fit(tiny_bert, lr=1e-2, encoder_lr=0.0)
        assert torch.equal(task.model.encoder.layers[0].attention.out.weight.cpu(), before)
        moved = self.fit(tiny_bert, lr=1e-2, encoder_lr=1e-3)
        assert not torch.equal(moved.model.encoder.layers[0].attention.out.weight.cpu(), before)

    def test_more_tokens_than_it_reads_are_refused(self, tiny_bert: Path) -> None:
        with pytest.raises(ArgumentError, match=r"max_source_length: tiny-bert reads at most 32 tokens. Received: 64"):
            self.fit(tiny_bert, max_source_length=64)


@functools.cache
def trained(**options: Any) -> Any:
    """After one epoch: it knows nothing, and does everything. One for all who ask for the same."""
    return Translate.fit(problems.copied(20), **{**TINY, **options})


class TestWhatIsRead:
    def test_an_example_is_what_the_model_reads_and_writes(self) -> None:
        task = Translate.learn(data := Translate.read(problems.copied(20), make_options()), make_options())
        example = task.encode(data)[0]
        vocabulary = task.source_vocabulary
        assert example.source == example.target == vocabulary.encode([data.columns["source"][0]])[0]
        assert (example.source[0], example.source[-1]) == (vocabulary.begin, vocabulary.end)
        assert task.length(example) == 2 * len(example.source)

    def test_a_batch_has_the_places_of_the_tokens_that_are_learned(self) -> None:
        task = Translate.learn(Translate.read(problems.copied(20), make_options()), make_options())
        batch = task.collate([Example([1, 7, 2], [1, 8, 9, 2]), Example([1, 7, 7, 2], [1, 5, 2])])
        assert batch["source_ids"].tolist() == [[1, 7, 2, 0], [1, 7, 7, 2]]
        assert batch["source_real"].tolist() == [[True, True, True, False], [True] * 4]
        assert batch["target_ids"].tolist() == [[1, 8, 9], [1, 5, 0]]
        assert batch["labels"].tolist() == [8, 9, 2, 5, 2]
        assert batch["places"].tolist() == [0, 1, 2, 3, 4]

    def test_the_loss_is_that_of_each_token_and_smoothed_in_training_alone(self) -> None:
        options = make_options(label_smoothing=0.1)
        task = Translate.learn(Translate.read(problems.copied(20), options), options).eval()
        batch = task.collate([Example([1, 7, 2], [1, 8, 2])])
        log_p = task.model(batch["source_ids"], batch["target_ids"]).log_softmax(-1)[0]
        total, count = task.loss(batch)
        torch.testing.assert_close(total, -(log_p[0, 8] + log_p[1, 2]))
        assert int(count) == 2
        smoothed, _ = task.train().loss(batch)
        torch.testing.assert_close(smoothed, 0.9 * total - 0.1 * log_p.mean(-1).sum())

    def test_a_long_source_is_cut_and_a_long_target_is_learned_up_to_there(self) -> None:
        options = make_options(max_source_length=4, max_target_length=3)
        data = Translate.read({"source": ["ant bee cat dog", "ant"], "target": ["ant bee cat dog", "ant"]}, options)
        task = Translate.learn(data, options)
        vocabulary = task.source_vocabulary
        whole = vocabulary.encode(["ant bee cat dog"])[0]
        long, short = task.encode(data)
        assert long.source == [*whole[:3], vocabulary.end]
        assert long.target == whole[:4]
        assert vocabulary.end not in long.target
        assert short.target[-1] == vocabulary.end or len(short.target) == 4
        of_source, of_target = task.remarks(data)
        assert "read in part: more than 4 tokens, the rest was cut (row" in of_source
        assert "read in part: a target of more than 3 tokens, the rest was cut (row" in of_target
        scored = task.evaluate(data).left_out  # by the whole reference
        assert scored == (of_source,)

    def test_a_target_that_fits_with_its_end_is_learned_whole(self) -> None:
        data = Translate.read({"source": ["ant", "bee"], "target": ["ant bee cat", "ant"]}, make_options())
        task = Translate.learn(data, make_options())
        longest = len(task.encode(data)[0].target) - 1  # [EOS] is learned, [BOS] is not
        for most, said in ((longest, []), (longest - 1, ["(row 0)"])):
            task.options = make_options(max_target_length=most)
            assert [each[-7:] for each in task.remarks(data)] == said

    def test_vocabularies_of_their_own(self) -> None:
        task = trained(shared_vocabulary=False)
        assert task.source_vocabulary is not task.target_vocabulary
        assert task.model.config.source_vocab_size == len(task.source_vocabulary)
        assert isinstance(task.predict("ant bee")[0]["translation"], str)


class TestFiles:
    PAIRS = (("Two dogs.", "Zwei Hunde."), ('A "big" house.', "Ein „großes“ Haus."))

    def test_a_tsv_with_a_header_is_read_by_its_names(self, tmp_path: Path) -> None:
        path = tmp_path / "pairs.tsv"
        path.write_text("target\tsource\n" + "".join(f"{y}\t{x}\n" for x, y in self.PAIRS), encoding="utf-8")
        assert Translate.read(str(path), make_options()).columns["source"] == [x for x, _ in self.PAIRS]
        path.write_text("de\ten\n" + "".join(f"{y}\t{x}\n" for x, y in self.PAIRS), encoding="utf-8")
        named = Translate.read(str(path), make_options(source="en", target="de"))
        assert named.columns["source"] == [x for x, _ in self.PAIRS]

    @pytest.mark.parametrize(
        ("header", "turned"), [("src\ttgt", False), ("tgt\tsrc", True), ("Source\tTarget", False), ("en\tde", False)]
    )
    def test_the_header_of_a_tsv_without_asked_names_is_no_pair(
        self, tmp_path: Path, header: str, turned: bool
    ) -> None:
        path, pairs = tmp_path / "pairs.tsv", [pair[::-1] if turned else pair for pair in self.PAIRS]
        path.write_text(f"{header}\n" + "".join(f"{x}\t{y}\n" for x, y in pairs), encoding="utf-8")
        data = Translate.read(str(path), make_options())
        assert data.columns == {"source": [x for x, _ in self.PAIRS], "target": [y for _, y in self.PAIRS]}
        (note,) = data.left_out
        source, target = header.split("\t")[::-1] if turned else header.split("\t")
        assert f"read as a header: {source!r} is the source, {target!r} the target" in note
        table = open_table(str(path), tuple(choose_columns(str(path), make_options()).values()))
        assert Translate.read(table, make_options()).columns == data.columns
        asked = Translate.read(str(path), make_options(source="1", target="2"))
        assert (asked.columns["source"][0], asked.left_out) == (header.split("\t")[0], ())

    def test_a_first_pair_of_two_words_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "pairs.tsv"
        path.write_text("Quelle\tZiel\nTwo dogs.\tZwei Hunde.\n", encoding="utf-8")
        data = Translate.read(str(path), make_options())
        assert data.columns["source"] == ["Quelle", "Two dogs."]
        assert "read as a pair, 'Quelle' and 'Ziel'. If it is a header" in data.left_out[0]
        path.write_text("Hi\tHi\nhi\thi\n", encoding="utf-8")  # no two languages
        assert len(Translate.read(str(path), make_options())) == 2

    def test_one_name_of_a_tsv_of_two_columns_leaves_the_other(self, tmp_path: Path) -> None:
        path = tmp_path / "pairs.tsv"
        path.write_text("de\ten\nZwei Hunde.\tTwo dogs.\n", encoding="utf-8")
        for options in ({"source": "en"}, {"target": "de"}):
            data = Translate.read(str(path), make_options(**options))
            assert (data.columns["source"], data.columns["target"]) == (["Two dogs."], ["Zwei Hunde."])
        data = Translate.read(str(path), make_options(source="2"))
        assert (data.columns["source"], data.columns["target"]) == (["en", "Two dogs."], ["de", "Zwei Hunde."])
        for options in ({"source": "src"}, {"target": "src"}):
            with pytest.raises(ArgumentError, match=r"no column 'src'\. The columns are: 'de', 'en'"):
                Translate.read(str(path), make_options(**options))

    @pytest.mark.parametrize("ending", ["", ".gz"])
    def test_two_files_line_by_line(self, tmp_path: Path, ending: str) -> None:
        names = [tmp_path / f"train.{language}{ending}" for language in ("en", "de")]
        for path, lines in zip(names, zip(*self.PAIRS, strict=True), strict=True):
            content = "".join(f"{line}\n" for line in lines).encode()
            path.write_bytes(gzip.compress(content) if ending else content)
        data = Translate.read(f"{names[0]},{names[1]}", make_options())
        assert data.columns == {"source": [x for x, _ in self.PAIRS], "target": [y for _, y in self.PAIRS]}

    def test_lines_that_do_not_belong_together(self, tmp_path: Path) -> None:
        (tmp_path / "a.en").write_text("one\n\nthree\n")
        (tmp_path / "a.de").write_text("eins\nzwei\ndrei\n")
        data = Translate.read(f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}", make_options())
        assert data.columns["source"] == ["one", "three"]
        assert "line 2" in data.left_out[0]
        (tmp_path / "a.de").write_text("eins\nzwei\n")
        with pytest.raises(ArgumentError, match=r"Received: 3 in a\.en and 2 in a\.de"):
            Translate.read(f"{tmp_path / 'a.en'},{tmp_path / 'a.de'}", make_options())
        with pytest.raises(FileError, match=r"b\.de"):
            Translate.read(f"{tmp_path / 'a.en'},{tmp_path / 'b.de'}", make_options())

    def test_a_column_that_is_not_there(self) -> None:
        with pytest.raises(ArgumentError, match=r"'target'.*'source', 'german'"):
            Translate.read({"source": ["a"], "german": ["b"]}, make_options())


def make_options(kind: Any = Translate, **options: Any) -> Any:
    return kind.options_type(**{**TINY, **options})


class TestSummarize:
    ROWS = ({"text": "One two. Three.", "summary": "One three."}, {"text": "Four five.", "summary": "Five."})

    def test_several_summaries_of_one_text(self) -> None:
        rows = [{"text": "a b", "summary2": "second", "summary1": "first", "summary10": "tenth", "summary_of": "no"}]
        options = make_options(Summarize)
        pairs = Summarize.pairs(Summarize.read(rows, options), options)
        assert pairs.references == [["first", "second", "tenth"]]

    def test_scores_and_their_baselines(self) -> None:
        task = Summarize.fit([*self.ROWS] * 5, **TINY)
        assert task.summary_words in (1, 2)
        task.summary_words = 2
        scores = task.evaluate([*self.ROWS])
        assert list(scores.values) == ["ROUGE-1", "ROUGE-2", "ROUGE-L"]
        assert scores.count == 2
        lead = scores.baselines["the first 2 words"]
        # "one two" for "one three": 1 of 2 and 1 of 2; "four five" for "five": 1 of 2 and 1 of 1, F1 = 2/3.
        assert lead["ROUGE-1"] == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
        assert lead["ROUGE-2"] == 0
        assert scores.baselines["the summary of another text"]["ROUGE-1"] == 0

    def test_what_it_took_from_the_data_is_kept(self, tmp_path: Path) -> None:
        task = Summarize.fit([*self.ROWS] * 5, out=tmp_path / "run", **TINY)
        assert Summarize.load(tmp_path / "run").summary_words == task.summary_words > 0


class TestReply:
    DIALOGUE = "A: Hi.\nB: Hello.\n\nA: Bye."

    def test_each_turn_is_a_reply_to_those_before(self) -> None:
        options = make_options(Reply, dialogue="turns")
        data = Reply.read({"turns": [self.DIALOGUE, "A: Alone."]}, options)
        assert data.left_out == ("1 row left out: a single turn, and no reply (row 1)",)
        pairs = Reply.pairs(data, options)
        assert pairs.sources == ["A: Hi.", "A: Hi.\nB: Hello."]
        assert pairs.references == [["B: Hello."], ["A: Bye."]]
        assert Reply.pairs(data, options, targets=False).sources == ["A: Hi.\nB: Hello.\nA: Bye."]

    def test_of_what_was_said_the_end_is_read(self) -> None:
        options = make_options(Reply, dialogue="turns", max_source_length=5)
        data = Reply.read({"turns": [self.DIALOGUE]}, options)
        task = Reply.learn(data, options)
        whole = task.source_vocabulary.encode(["A: Hi.\nB: Hello."])[0]
        assert task.encode(data)[1].source == [whole[0], *whole[-4:]]
        assert "the beginning was cut" in task.remarks(data)[0]

    def test_a_long_turn_is_reported_with_its_dialogue(self) -> None:
        options = make_options(Reply, dialogue="turns", max_target_length=8)
        data = Reply.read({"turns": ["A: Hi.\nB: Hi.\nA: Hi.", f"A: Hi.\nB: Hi.\nA: {'x y z ' * 9}"]}, options)
        said = Reply.learn(data, options).remarks(data)
        assert said == ("1 row read in part: a target of more than 8 tokens, the rest was cut (row 1)",)

    def test_perplexity_is_that_of_the_replies(self) -> None:
        task = Reply.fit({"message": ["ant bee"] * 6, "reply": ["bee", "bee", "cat"] * 2}, **TINY)
        assert task.commonest == "bee"
        scores = task.evaluate({"message": ["ant"], "reply": ["bee cat"]})
        (example,) = task.encode(task.read({"message": ["ant"], "reply": ["bee cat"]}, task.options))
        assert scores.values["perplexity"] == pytest.approx(math.exp(task.mean_loss([example])))
        tokens = len(example.target) - 1  # all of them different: none is likelier than another
        assert scores.baselines["how often each token occurs"]["perplexity"] == pytest.approx(
            tokens
            if len(set(example.target)) == tokens + 1
            else scores.baselines["how often each token occurs"]["perplexity"]
        )
        assert scores.baselines["always the commonest reply"] == {"distinct-1": 1.0, "distinct-2": 0.0}


class TestUse:
    def test_a_loaded_task_writes_the_same(self, tmp_path: Path) -> None:
        for shared in (True, False):
            folder = tmp_path / f"run-{shared}"
            task = trained(out=folder, shared_vocabulary=shared, beams=2)
            texts = ["ant bee cat", "dog"]
            again = tasks.load(folder)
            assert isinstance(again, Translate)
            assert again.predict(texts) == task.predict(texts)
        with pytest.raises(CheckpointError, match=r"'translate'.*'reply'"):
            Reply.load(folder)

    def test_texts_and_tables_are_read_alike(self, tmp_path: Path) -> None:
        task = trained()
        one, two = task.predict("ant bee"), task.predict(["ant bee", "cat"])
        assert set(one[0]) == {"translation", "score"}
        assert one[0]["translation"] == two[0]["translation"]
        assert one[0]["score"] == pytest.approx(two[0]["score"])
        assert task.predict({"source": ["ant bee", "cat"]}) == two
        (tmp_path / "in.csv").write_text("id,source\n1,ant bee\n2,cat\n")
        assert task.predict(str(tmp_path / "in.csv")) == two
        with pytest.raises(ArgumentError, match=r"inputs\[1\]: expected a text. Received: int 3"):
            task.predict(["ant", 3])
        with pytest.raises(ArgumentError, match="Unicode"):
            task.predict(["ant \ud800"])

    def test_what_it_looks_at_has_the_names_of_both_texts(self) -> None:
        (seen,) = trained(beams=2).look(["ant bee"])
        assert isinstance(seen, Seen)
        assert seen.layers == [
            "encoder.layers.0.attention",
            "decoder.layers.0.self_attention",
            "decoder.layers.0.cross_attention",
        ]
        record = seen["decoder.layers.0.cross_attention"]
        assert seen.col_labels(record) == ("[BOS]", "␣ant", "␣bee", "[EOS]")
        assert (seen.row_labels(record) or ())[0] == "[BOS]"

    def test_sampled_texts_depend_on_the_seed(self) -> None:
        texts = ["ant bee cat"] * 4
        first, again, other = (trained(sample=True, seed=seed).predict(texts) for seed in (0, 0, 1))
        assert first == again != other

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"vocab_size": 100}, "vocab_size"),
            ({"heads": 3}, "dim: expected a multiple of heads=3"),
            ({"top_p": 1.5}, "top_p"),
            ({"temperature": 0.0}, "temperature"),
            ({"max_target_length": 1}, "max_target_length"),
            ({"label_smoothing": 1.0}, "label_smoothing"),
            ({"no_repeat": -1}, "no_repeat"),
            ({"copies": True, "shared_vocabulary": False}, "copies: expected one vocabulary"),
        ],
    )
    def test_options_that_make_no_sense_are_said_before_the_training(
        self, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ArgumentError, match=message):
            trained(**options)

    def test_nothing_to_learn(self) -> None:
        with pytest.raises(ArgumentError, match="no row can be used"):
            Translate.fit({"source": ["", " "], "target": ["a", "b"]}, **TINY)
        with pytest.raises(DtypeError, match="list for 'source'"):
            Translate.fit({"source": "a", "target": "b"}, **TINY)


class TestScores:
    def test_bleu_of_one_sentence_by_hand(self) -> None:
        # a b c d e x for a b c d e f: 5/6, 4/5, 3/4, 2/3 of the n-grams; as long, so no penalty.
        expected = 100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
        assert bleu(["a b c d e x"], [["a b c d e f"]]) == pytest.approx(expected)
        assert bleu(["a b c d e x"], [["q r s t", "a b c d e f"]]) == pytest.approx(expected)  # of several, any

    def test_chinese_is_scored_by_character(self) -> None:
        assert bleu_tokenizer([["两只狗。"], ["一个人。"]]) == "zh"
        assert bleu_tokenizer([["犬が二匹います。"]]) == "char"
        assert bleu_tokenizer([["Zwei Hunde."], ["两只狗。"], ["Ein Haus."]]) == "13a"
        assert bleu(["我爱北京天安门"], [["我爱北京天安门"]]) == pytest.approx(100)
        # One of seven characters is another: 6/7, 5/6, 4/5, 3/4.
        assert bleu(["我爱北京天安人"], [["我爱北京天安门"]]) == pytest.approx(
            100 * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
        )
        assert rouge(["我爱狗"], [["我爱猫"]])["ROUGE-1"] == pytest.approx(100 * 2 / 3)
        assert words("我爱Python 3，OK?") == ["我", "爱", "python", "3", "ok"]

    def test_chrf_of_what_is_right_and_of_what_has_nothing_in_common(self) -> None:
        assert chrf(["abc def"], [["abc def"]]) == pytest.approx(100)
        assert chrf(["abc"], [["xyz"]]) == 0

    def test_rouge_by_hand(self) -> None:
        found = rouge(["The cat sat."], [["the cat ran away"]])
        # 2 of 3 words, of 4: P = 2/3, R = 2/4, F1 = 4/7. Pairs: the-cat of 2 and of 3, F1 = 2/5.
        assert found == pytest.approx({"ROUGE-1": 400 / 7, "ROUGE-2": 40, "ROUGE-L": 400 / 7})

    def test_of_several_references_the_best_counts_for_each_score(self) -> None:
        references = ["b a", "a b c d e f g h i j"]
        found = rouge(["a b"], [references])
        assert found["ROUGE-1"] == pytest.approx(100)  # by the first
        assert found["ROUGE-2"] == pytest.approx(100 * 2 * 1 * (1 / 9) / (1 + 1 / 9))  # by the second

    def test_distinct_n_grams(self) -> None:
        assert distinct(["a b a", "A b"], 1) == 2 / 5
        assert distinct(["a b a", "a b"], 2) == 2 / 3
        assert distinct(["a"], 2) == 0

    def test_first_words(self) -> None:
        assert first_words("One, two; three.", 2) == "One, two"
        assert first_words("One.", 5) == "One."
        assert first_words("我爱北京", 2) == "我爱"

    def test_texts_may_have_different_numbers_of_references(self) -> None:
        one_each = bleu(["a b c d", "e f g h"], [["a b c d"], ["e f g h"]])
        assert bleu(["a b c d", "e f g h"], [["a b c d", "q r s t"], ["e f g h"]]) == pytest.approx(one_each)
        assert chrf(["a b", "e f"], [["x", "a b"], ["e f"]]) == pytest.approx(100)
