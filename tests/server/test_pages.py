"""The page at /docs: what it shows and sends, with nothing from elsewhere."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvicorn
from playwright.sync_api import sync_playwright

from headwise import language
from headwise.server.app import create
from headwise.server.listening import bind
from headwise.server.routes.pages import docs
from headwise.server.settings import Settings
from tests.conftest import launch_chromium

from .plain_engine import Explaining

TOKEN = "a-token-of-32-characters-or-more"


@pytest.fixture
def address() -> Iterator[str]:
    with bind("127.0.0.1", 0, "--port") as listener:
        app = create(Explaining(), Settings(token=TOKEN))
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none", http="h11"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_the_page_names_no_other_site() -> None:
    assert re.findall(r"https?://", docs("en")[0]) == []


def test_the_page_is_in_the_language_of_the_server_and_may_run_its_own_script_alone() -> None:
    language.speak("zh")
    try:
        page, policy = docs("zh")
    finally:
        language.speak(None)
    assert '<html lang="zh">' in page
    assert 'make("h2", "模型")' in page
    assert "{{" not in page
    assert policy != docs("en")[1]


@pytest.mark.browser
def test_the_page_asks_for_the_token_and_tries_routes(address: str) -> None:
    # In a thread: Playwright leaves its event loop running where it began, and the tests after this want one of theirs.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_try_routes, address).result()


def _try_routes(address: str) -> None:
    with sync_playwright() as playwright:
        page = launch_chromium(playwright).new_page(viewport={"width": 400, "height": 800})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/docs")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("cell", name="words (version 2)").wait_for()

        assert page.evaluate("document.documentElement.scrollWidth") <= 400

        page.get_by_label("Body for /classify").fill('{"text": "abcd"}')
        page.get_by_role("button", name="Send").first.click()
        page.locator("pre", has_text='"label": "short"').wait_for()

        page.locator("summary", has_text="/write").click()
        page.get_by_label("Body for /write").fill('{"text": "a b", "stream": true}')
        route = page.locator("details", has=page.get_by_label("Body for /write"))
        route.get_by_role("button", name="Send").click()
        route.locator("pre", has_text="event: done").wait_for()

        page.locator("summary", has_text="/explain").click()
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save the page").click()
        assert saved.value.suggested_filename == "attention.html"
        assert errors == []
