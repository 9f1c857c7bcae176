"""Serves the page of a profile (statistics of heads over a corpus), and pages of the texts of its examples.

GET  /TOKEN/                                     the page
GET  /TOKEN/text?layer=2&head=9&example=0        a page of the attention in that text, which the model reads again
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headwise.capture.context import watch
from headwise.capture.pretrained import Pretrained
from headwise.errors import ArgumentError
from headwise.profiles import Profile
from headwise.profiles.resuming import digest_model
from headwise.viewer.bundle import assemble, read
from headwise.viewer.inputs import inputs_of
from headwise.viewer.page import policy, whole_page
from headwise.viewer.profiled import ENTRY, profile_page
from headwise.viewer.site import POLICY, Guarded, read_place


class ProfileSite(Guarded):
    """The server's application. It loads the model (by `model`) when a text is opened for the first time."""

    def __init__(self, profile: Profile, model: Callable[[], Pretrained], *, title: str, port: int) -> None:
        super().__init__(port)
        self.profile, self.load = profile, model
        self.model: Pretrained | None = None
        self.reading = threading.Lock()
        self.page = "".join(profile_page(profile, title=title, serves=True))
        style = read("document.css")
        self.policy = f"{policy(assemble(ENTRY), style, embedded=False)}; {POLICY}"
        self.text_policy = f"{policy(assemble('page.js'), style, embedded=True)}; {POLICY}"
        self.routes = {"": ("GET", self.give_page), "text": ("GET", self.give_text)}

    async def give_page(self, request: Request) -> Response:
        """Respond with the page of the profile."""
        return HTMLResponse(self.page, headers={"Content-Security-Policy": self.policy})

    async def give_text(self, request: Request) -> Response:
        """Respond with a page of the attention in the text of one example."""
        layer = read_place(request, "layer", len(self.profile.layers))
        head = self.profile[layer, read_place(request, "head", self.profile.layers[layer].heads)]
        number = read_place(request, "example", len(head.examples))
        page = await asyncio.to_thread(self.text_page, layer, head.head, number)
        return HTMLResponse(page, headers={"Content-Security-Policy": self.text_policy})

    def text_page(self, layer: int, head: int, number: int) -> str:
        """Let the model read the text of an example under `headwise.watch`, and return a page of its attention.

        Raises:
            ArgumentError: the weights of the model are not the weights with which the profile was made.
        """
        window = self.profile[layer, head].examples[number].window
        only = self.profile.options["only"]
        with self.reading:
            if self.model is None:
                model = self.load()
                if digest_model(model.model) != self.profile.model_digest:
                    raise ArgumentError(
                        f"{model.name} has other weights than the model of this profile, {self.profile.model}. "
                        "Start headwise view with --model and that model"
                    )
                self.model = model
            with watch(self.model.model, only=only) as seen:
                tokens = self.model.read([window.tokens])
            seen.tokens = tokens
        title = f"text {window.text:,} of {self.profile.corpus}"
        return "".join(whole_page(inputs_of(seen), title=title))
