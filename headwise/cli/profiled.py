"""Writes or serves the page of `headwise view` for a profile: a card for every head, and a page for each head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwise.cli.files import check_writable, finish_page
from headwise.cli.output import check_served
from headwise.errors import ArgumentError, brief
from headwise.files import check_page, check_there
from headwise.language import Sentence

if TYPE_CHECKING:
    from headwise.capture.pretrained import Pretrained
    from headwise.viewer.site import Guarded

PAGE = Path("heads.html")


def profile_among(texts: Sequence[str], files: Sequence[Path]) -> Path | None:
    """Return the path of the profile among the arguments, or None. ArgumentError for any argument beside it."""
    candidates = [Path(text) for text in texts if text.endswith(".hw")]
    if not candidates:
        return None
    for each in candidates:
        check_there(each)  # before torch is imported
    from headwise.profiles.storage import is_profile

    found = next(filter(is_profile, candidates), None)
    if found is not None and (len(texts) > 1 or files):
        other = next((text for text in texts if Path(text) != found), None) or (str(files[0]) if files else texts[1])
        raise ArgumentError(
            "{found} is a profile: expected nothing beside it. Received: {other}", found=found, other=brief(other)
        )
    return found


def view_profile(
    path: Path,
    model: str | None,
    layers: str | None,
    out: Path | None,
    *,
    serve: bool,
    port: int | None,
    open_page: bool,
) -> None:
    """Write the page of a profile, or serve it.

    Raises:
        ArgumentError: options that do not fit a profile.
        FileError: the profile is damaged, or the page cannot be written.
    """
    if layers is not None:
        raise ArgumentError("{path} is a profile, whose page chooses layers itself. Leave --layers out", path=path)
    if model is not None and not serve:
        raise ArgumentError(
            "{path} is a profile: only --serve reads its texts again. Add --serve, or leave --model out", path=path
        )
    check_served(out, port, serve=serve)
    from headwise.profiles import load

    target = out or PAGE
    if not serve:
        check_writable(target, "--out", [path], "the profile")
        check_page(target)
    profile = load(path)
    if serve:
        from headwise.viewer.server import serve_site

        def make(listens: int) -> Guarded:
            from headwise.viewer.profile_site import ProfileSite

            return ProfileSite(profile, lambda: _model(model, profile.model), title=path.name, port=listens)

        serve_site(make, title=path.name, port=port or 0, open_page=open_page)
        return
    from headwise.viewer.profiled import write_profile_page

    write_profile_page(target, profile, title=path.name)
    heads = sum(1 for _ in profile.heads())
    counts = Sentence("{count} heads over {tokens:,} tokens").format(count=heads, tokens=profile.tokens)
    finish_page(target, counts, open_page=open_page)


def _model(given: str | None, name: str) -> Pretrained:
    """Load the model of --model, or else the model of the profile."""
    from headwise.cli.loading import load_model
    from headwise.profiles.profile import DEFAULT_MODEL

    return load_model(given or (None if name == DEFAULT_MODEL else name), generates=False, dtype="auto")
