"""The one script of a page: what a browser makes of it is what it would make of the modules."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headwise.viewer.bundle import assemble

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Write = Callable[..., Path]


@pytest.fixture
def modules(tmp_path: Path) -> Write:
    """`modules(page="…", views_head="…")` writes page.js and views/head.js; other files by their path."""

    def write(files: dict[str, str]) -> Path:
        for name, source in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(source, encoding="utf-8")
        return tmp_path

    return write


MODULES = {
    "page.js": """
        // The entry.
        import {
          head,
          Tail as End,
        } from "./views/head.js";
        import { shared, count } from "./shared.js";
        import STYLE from "./page.css" with { type: "text" };
        import WORKER from "./worker.js" with { type: "text" };

        const name = "page";
        window.found = { head: head(), end: new End().name, shared, count: count(), name, style: STYLE };
        window.worker = WORKER;
        """,
    "views/head.js": """
        import { shared, count } from "../shared.js";
        import { near } from "./near.js";
        const name = "head";
        export function head() { return `${name} ${near} ${shared} ${count()}`; }
        export class Tail { name = "tail"; }
        """,
    "views/near.js": 'const name = "near", other = 0;export{other,name as near};\n',
    "shared.js": """
        const name = "shared";
        let calls = 0;
        export const shared = name;
        export const count = () => ++calls;
        export async function later() { return name; }
        """,
    "worker.js": 'import { shared } from "./shared.js";\nonmessage = () => postMessage(shared);',
    "page.css": ":host { content: '</script><!--\\2028 é'; }",
}
MODULES = {name: re.sub(r"(?m)^ {8}", "", source) for name, source in MODULES.items()}


@pytest.mark.browser
def test_a_browser_runs_the_modules_once_each_and_names_do_not_clash(modules: Write, chromium: Browser) -> None:
    script = assemble("page.js", modules(MODULES))
    tab = chromium.new_page()
    tab.set_content(f'<script type="module">{script}</script>')
    tab.wait_for_function("() => window.worker")
    assert tab.evaluate("() => window.found") == {
        "head": "head near shared 1",
        "end": "tail",
        "shared": "shared",
        "count": 2,  # of one counter
        "name": "page",
        "style": MODULES["page.css"],
    }
    answer = """() => new Promise((resolve) => {
        const worker = new Worker(URL.createObjectURL(new Blob([window.worker], { type: "text/javascript" })));
        worker.onmessage = (event) => resolve(event.data);
        worker.postMessage(null);
    })"""
    assert tab.evaluate(answer) == "shared"
    tab.close()


def test_each_module_stands_once_behind_what_it_imports(modules: Write) -> None:
    script = assemble("page.js", modules(MODULES))
    assert re.findall(r"(?m)^const (\$\w+) = ", script) == [
        "$shared_js",
        "$views_near_js",
        "$views_head_js",
        "$page_js",
    ]
    assert not re.search(r"(?m)^(import|export)\b", script)
    assert script.startswith('"use strict";')


def test_a_file_as_text_cannot_end_the_script(modules: Write) -> None:
    script = assemble("page.js", modules(MODULES))
    assert "</script" not in script.lower()
    assert "<!--" not in script
    assert "\u2028" not in script
    assert r"\u003c/script>\u003c!--" in script


REFUSED = {
    "a circle": ({"page.js": 'import { a } from "./a.js";', "a.js": 'import { b } from "./page.js";'}, "page.js → a"),
    "itself": ({"page.js": 'import { a } from "./page.js";'}, "imports form a cycle: page.js → page.js"),
    "a module that is not there": ({"page.js": 'import { a } from "./nowhere.js";'}, "nowhere.js does not exist"),
    "a text that is not there": (
        {"page.js": 'import A from "./no.css" with { type: "text" };'},
        "no.css does not exist",
    ),
    "a package": ({"page.js": 'import { a } from "d3";'}, "must begin with .*: d3"),
    "a path out of the folder": ({"page.js": 'import { a } from "../a.js";'}, "must stay in the folder"),
    "a default import": ({"page.js": 'import a from "./a.js";', "a.js": ""}, "default exports are not supported"),
    "a default export": ({"page.js": "export default 3;"}, "not supported: export default 3;"),
    "a re-export": ({"page.js": 'export { a } from "./a.js";'}, "not supported: export { a } from"),
    "exports before the end": ({"page.js": "const a = 1;\nexport { a };\na;"}, "not supported: export { a }"),
    "a variable": ({"page.js": "export let a = 1;"}, "not supported: export let a"),
    "several names": ({"page.js": "export const { a, b } = c;"}, "not supported: export const { a, b }"),
    "all of a module": ({"page.js": 'import * as a from "./a.js";'}, r"not supported: import \* as a"),
    "an import for its effects": ({"page.js": 'import "./a.js";'}, 'not supported: import "./a.js"'),
    "other attributes": (
        {"page.js": 'import A from "./a.json" with { type: "json" };', "a.json": ""},
        "imported as a whole, with",
    ),
    "names out of a text": (
        {"page.js": 'import { A } from "./a.css" with { type: "text" };', "a.css": ""},
        "imported as a whole, with",
    ),
    "an end of the script": ({"page.js": 'const a = "</SCRIPT>";'}, "cannot contain '</SCRIPT'"),
    "the beginning of a comment": ({"page.js": 'const a = "<!--";'}, "cannot contain '<!--'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused(case: str, modules: Write) -> None:
    files, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        assemble("page.js", modules(files))


def test_the_page_itself_is_bundled() -> None:
    script = assemble("page.js")
    assert len(script) > 10_000
    assert not re.search(r"(?m)^(import|export)\b", script)
