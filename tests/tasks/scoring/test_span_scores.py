"""Exact match and F1: by hand, and as torchmetrics has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.text import SQuAD

from headwise.tasks.scoring.span_scores import exact_match, f1, is_by_character, normalised


def test_articles_case_and_punctuation_do_not_count() -> None:
    assert normalised("The  Cat, sat on a mat!") == ["cat", "sat", "on", "mat"]
    assert exact_match("the Eiffel Tower.", ["Eiffel tower"]) == 1


def test_f1_counts_words_and_takes_the_best_true_answer() -> None:
    # 2 words in common: precision 2/3, recall 2/4.
    assert f1("big red dog", ["big dog with spots"]) == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert f1("big red dog", ["cat", "red dog"]) == pytest.approx(0.8)
    assert f1("word word", ["word"]) == pytest.approx(2 / 3)


def test_chinese_is_compared_by_character() -> None:
    assert is_by_character("他在 2016 年去了巴黎。")
    assert not is_by_character("He went to “Paris” – in 2016…")
    assert normalised("去了巴黎，NFL 24 次。", by_character=True) == ["去", "了", "巴", "黎", "nfl", "24", "次"]
    assert exact_match("巴黎。", ["巴 黎"], by_character=True) == 1
    assert f1("去了巴黎", ["巴黎"], by_character=True) == pytest.approx(2 * (2 / 4) * 1 / (2 / 4 + 1))


def test_no_answer_is_right_only_where_there_is_none() -> None:
    assert exact_match("", []) == f1("", []) == 1
    assert exact_match("Paris", []) == f1("Paris", []) == 0
    assert exact_match("", ["Paris"]) == f1("", ["Paris"]) == 0


WORDS = st.lists(st.sampled_from(["the", "a", "cat", "Dog.", "dog", "U.S.", "1,000", "“x”", "an-other"]), min_size=1)


@given(said=WORDS, true=st.lists(WORDS, min_size=1, max_size=3))
def test_as_torchmetrics_has_them(said: list[str], true: list[list[str]]) -> None:
    answer, answers = " ".join(said), [" ".join(each) for each in true]
    if not normalised(answer) or not all(map(normalised, answers)):
        return  # of nothing but articles: SQuAD 2.0 says 1 if both are empty, torchmetrics has 1.1's 0
    official = SQuAD()(
        [{"prediction_text": answer, "id": "0"}],
        [{"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "0"}],
    )
    assert exact_match(answer, answers) * 100 == pytest.approx(float(official["exact_match"]))
    assert f1(answer, answers) * 100 == pytest.approx(float(official["f1"]), rel=1e-5)
