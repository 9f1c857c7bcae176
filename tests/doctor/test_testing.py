"""`assert_healthy` and the pytest plugin, as a test suite of somebody else uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor, nn

from headwise import testing
from headwise.doctor.finding import Finding
from headwise.doctor.result import Diagnosis
from headwise.errors import ArgumentError
from headwise.testing import assert_healthy

from .specimens import CODE

pytest_plugins = ["pytester"]

INI = "[pytest]\nattention =\n    odd.py:WrongScale\n    odd.py:Healthy\nattention_ignore = wrong-scale\n"
PLUGIN = ("-p", "headwise.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture
def specimens(tmp_path: Path) -> dict[str, type[nn.Module]]:
    names: dict[str, type[nn.Module]] = {"__name__": "specimens"}  # type: ignore[dict-item]
    exec(compile(CODE, str(tmp_path / "odd.py"), "exec"), names)
    return names


def test_a_bug_fails_with_the_report(specimens: dict[str, type[nn.Module]]) -> None:
    assert assert_healthy(specimens["Healthy"]()).healthy
    with pytest.raises(AssertionError, match=r"(?s)not healthy:.*WrongScale.*bug  wrong-scale.*1 bug"):
        assert_healthy(specimens["WrongScale"]())
    assert not assert_healthy(specimens["WrongScale"](), ignore=["wrong-scale"]).healthy


def test_what_is_ignored_must_exist(specimens: dict[str, type[nn.Module]]) -> None:
    with pytest.raises(
        ArgumentError, match=r"ignore: every name .* Received: 'wrong_scale'. Did you mean 'wrong-scale'"
    ):
        assert_healthy(specimens["Healthy"](), ignore=["wrong_scale"])


def test_risks_fail_where_they_should() -> None:
    found = Diagnosis(
        "A", (Finding("empty-row-nan", "risk", "", ""), Finding("weights-averaged", "note", "", "")), ("f(x)",)
    )
    testing.check(found)
    testing.check(found, frozenset({"empty-row-nan"}), risks=True)
    with pytest.raises(AssertionError, match=r"empty-row-nan(?s:.*)No bug; 1 risk\.") as caught:
        testing.check(found, risks=True)
    assert "weights-averaged" not in str(caught.value)


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins only take time
    pytester.path.joinpath("odd.py").write_text(CODE, encoding="utf-8")
    pytester.makepyfile(
        test_mine="""
        from odd import Healthy, WrongScale

        def test_healthy(assert_healthy):
            assert_healthy(Healthy())

        def test_wrong_scale(assert_healthy):
            assert_healthy(WrongScale())
        """
    )
    return pytester


def test_the_fixture_and_classes_that_are_named(suite: pytest.Pytester) -> None:
    """Classes after the tests; with relative paths, arguments, and a sentence for what cannot be examined."""
    named = ("odd.py:Healthy(heads=4)", "odd.py:WrongScale", "odd.py:B")
    result = suite.runpytest_subprocess(*PLUGIN, "-v", *(word for name in named for word in ("--attention", name)))
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*attention: odd.py:Healthy(heads=4) PASSED*",
            "*attention: odd.py:WrongScale FAILED*",
            "*test_mine.py:7: AssertionError",
            "bug  wrong-scale*",
            "odd.py has no such class. Received: B. Its classes: *",
            "*= attention (headwise) =*",
            "odd.py:B: not examined: odd.py has no such class. Received: B. * (0.0 s)",
            "odd.py:Healthy(heads=4): healthy (*.* s)",
            "odd.py:WrongScale: 1 bug: wrong-scale (*.* s)",
            "test_mine.py::test_healthy Healthy: healthy (*.* s)",
            "test_mine.py::test_wrong_scale WrongScale: 1 bug: wrong-scale (*.* s)",
            "FAILED test_mine.py::test_wrong_scale*not healthy*",
        ]
    )


@pytest.mark.slow
def test_classes_of_the_ini_file(suite: pytest.Pytester) -> None:
    suite.makeini(INI)
    result = suite.runpytest_subprocess(*PLUGIN, "-q")
    result.assert_outcomes(passed=4)
    assert "attention (headwise)" not in result.stdout.str()  # where pytest is to be quiet
    # Whoever runs one file does not wait for the others.
    listed = suite.runpytest_subprocess(*PLUGIN, "--collect-only", "-q", "test_mine.py").stdout.lines
    assert not [line for line in listed if "attention: odd.py" in line]


def test_pytest_starts_without_anything_heavy_and_classes_are_chosen_by_name(suite: pytest.Pytester) -> None:
    program = (
        "import sys, pytest\n"
        f"pytest.main([*{PLUGIN!r}, '--collect-only', '-q', '-k', 'attention and WrongScale'])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    suite.makeini(INI)
    suite.path.joinpath("test_mine.py").unlink()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=suite.path)
    assert [line for line in done.stdout.splitlines() if "odd.py" in line] == ["attention: odd.py:WrongScale"]
    assert {"torch", "numpy", "rich"}.isdisjoint(done.stderr.split())


def test_what_was_not_examined_fails() -> None:
    class Table(nn.Module):
        def forward(self, x: Tensor, table: dict[str, Tensor]) -> Tensor:
            return x * table["scale"]

    with pytest.raises(AssertionError, match=r"not examined: Table\.forward\(x, table\): no way to call it was found"):
        assert_healthy(Table())
