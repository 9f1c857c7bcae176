"""The pytest plugin: examines attention classes along with the tests, and provides a fixture for your own tests.

At the end of the tests it prints a line for each attention module that was examined.

    pytest --attention "my_model.py:MyAttention(embed_size=64, heads=8)"

or permanently, in pyproject.toml, under [tool.pytest.ini_options]:

    attention = ["my_model.py:MyAttention(embed_size=64, heads=8)"]
    attention_ignore = ["weights-averaged"]

It is loaded whenever pytest starts, so it imports heavy packages only when a class is examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headwise.doctor.result import Diagnosis

_PROPERTY = "attention"  # the property of a test's report that holds a module's line: pytest-xdist passes it on


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headwise", "attention (headwise)")
    group.addoption(
        "--attention",
        action="append",
        default=[],
        metavar="FILE.PY:CLASS(ARGUMENTS)",
        help="examine this attention class as `headwise doctor` does; may be given several times",
    )
    parser.addini("attention", "attention classes to examine: file.py:Class(arguments)", type="linelist", default=[])
    parser.addini("attention_ignore", "findings of the doctor that are intended", type="args", default=[])


@pytest.fixture
def assert_healthy(pytestconfig: pytest.Config) -> Callable[..., Any]:
    """`headwise.testing.assert_healthy`, which also ignores what `attention_ignore` lists."""
    from headwise import testing

    def assert_healthy(module: Any, *, ignore: Any = (), **options: Any) -> Any:
        __tracebackhide__ = True
        return testing.assert_healthy(module, ignore=[*ignore, *pytestconfig.getini("attention_ignore")], **options)

    return assert_healthy


@pytest.hookimpl(tryfirst=True)  # so that -k and -m also select among the added items
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Append the classes of --attention to the tests; those of the ini file only if no test files were named."""
    folders = dict.fromkeys(config.getoption("--attention"), config.invocation_params.dir)
    if config.args_source is not config.ArgsSource.ARGS:
        folders = {**dict.fromkeys(config.getini("attention"), config.rootpath), **folders}
    for target, folder in folders.items():
        name = f"attention: {target}"
        items.append(AttentionItem.from_parent(session, name=name, nodeid=name, target=target, folder=folder))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Store on the test's report a line for each module that the doctor examines while the test runs."""
    from headwise import testing

    name = item._target if isinstance(item, AttentionItem) else ""

    def note(diagnosis: Diagnosis, ignored: frozenset[str]) -> None:
        from headwise.doctor.telling.report import line

        item.user_properties.append((_PROPERTY, line(diagnosis, name or f"{item.nodeid} {diagnosis.subject}", ignored)))

    testing.listeners.append(note)
    try:
        return (yield)
    finally:
        testing.listeners.remove(note)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print a line for each module that was examined; none with -q, which shows only failures."""
    reports = [x for each in terminalreporter.stats.values() for x in each if getattr(x, "when", "") == "call"]
    lines = [text for report in reports for name, text in report.user_properties if name == _PROPERTY]
    if lines and config.get_verbosity() >= 0:
        terminalreporter.section("attention (headwise)")
        for text in sorted(lines):
            terminalreporter.write_line(text)


class AttentionItem(pytest.Item):
    """A class that the doctor examines, as an item among the tests."""

    def __init__(self, *, target: str, folder: Path, **known: Any) -> None:
        super().__init__(**known)
        self._target, self._folder = target, folder

    def runtest(self) -> None:
        from headwise.doctor.catalogue import check_names
        from headwise.doctor.result import Diagnosis
        from headwise.doctor.targets.examine import examine
        from headwise.doctor.targets.load import parse
        from headwise.errors import DoctorError
        from headwise.testing import check, tell

        ignored = check_names(self.config.getini("attention_ignore"), "attention_ignore")
        try:
            diagnosis = examine(parse(self._target, folder=self._folder), timeout=60.0)
        except DoctorError as error:
            tell(Diagnosis(self._target, (), not_examined=str(error)), ignored)
            raise
        check(diagnosis, ignored)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report, or the message of another headwise error, without a traceback through the doctor."""
        from headwise.errors import HeadwiseError

        if isinstance(excinfo.value, AssertionError | HeadwiseError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        return self._folder / self._target.partition(":")[0], None, "attention"
