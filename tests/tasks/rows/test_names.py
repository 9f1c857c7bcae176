"""Names of columns: no column takes the place of another."""

from __future__ import annotations

from headwise.tasks.rows.names import make_different, name_beside, note_renamed


def test_equal_names_get_numbers_that_nothing_else_has() -> None:
    names = make_different(["a", "a", "a.2", "a", 1, "1"])
    assert names == ("a", "a.2", "a.2.2", "a.3", "1", "1.2")
    assert note_renamed(["a", "a"], ("a", "a.2")) == (
        "column 'a' is there more than once: the later one is called 'a.2'",
    )


def test_predictions_of_several_models_stand_beside_each_other() -> None:
    columns = ["text", "label"]
    for expected in (
        ["predicted label", "share"],
        ["predicted label.2", "predicted share.2"],
        ["predicted label.3", "predicted share.3"],
    ):
        found = list(name_beside(["label", "share"], columns).values())
        assert found == expected
        columns += found


def test_names_that_a_model_itself_has_twice_differ() -> None:
    assert name_beside(["a", "predicted a"], ["a"]) == {"a": "predicted a", "predicted a": "predicted a.2"}
