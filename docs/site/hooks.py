"""What the site has beside the files of docs/, and where links lead that leave docs/.

README, CHANGELOG, CONTRIBUTING, the examples and the notebooks are pages of the site, under the addresses of `PAGES`. A
link to one of them in the Markdown, which GitHub follows in the repository, leads to that page. The reference is made
of `reference.py` and the docstrings, the gallery of pages that headwise writes.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils.templates import TemplateContext

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))  # mkdocs loads a hook by its path

import commands  # noqa: E402
import notebooks  # noqa: E402
import prose  # noqa: E402
import reference  # noqa: E402

LIVE = Path(
    os.environ.get("HEADWISE_GALLERY", ROOT / "build" / "gallery")
)  # where scripts/docs writes the pages of the gallery
LARGE = 5_000_000  # bytes of a page that opens by a click
EXECUTE = os.environ.get("HEADWISE_NOTEBOOKS") != "saved"
EXAMPLES = sorted((ROOT / "examples").iterdir())

# File of the repository -> page of the site. Files of docs/ have their own path.
PAGES = {
    "README.md": "index.md",
    "README.zh.md": "zh.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples/index.md",
    **{f"examples/{path.name}": f"examples/{path.stem}.md" for path in EXAMPLES if path.suffix in (".py", ".ipynb")},
}
RAW = ("LICENSE", "CITATION.cff", "examples/reviews.csv", "examples/attention.txt")
ASSETS = ("headwise.css", "iframe-worker.js")
_ORIGINS = {page: file for file, page in PAGES.items()}

_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
_COMMENT = re.compile(r"^(<!--.*?-->)$", re.MULTILINE)
_LIVE = re.compile(r"<!-- live: (?P<name>[\w-]+)(?P<address>#\S+)? -->\n+(?P<picture>!\[(?P<alt>[^]]*)\]\([^)]*\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages of the reference stand in the navigation in the order of `reference.GROUPS`."""
    for entry in config.nav or []:
        if "Reference" in entry:
            entry["Reference"] += [f"reference/{group.slug}.md" for group in reference.GROUPS]
            entry["Reference"] += ["reference/command.md", "reference/pytest.md"]
    logging.getLogger("jieba").setLevel(logging.WARNING)  # it tells of its dictionary
    config.watch += [str(ROOT / "headwise"), str(ROOT / "examples")]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs/."""
    made: dict[str, str | bytes] = {}
    for file, page in PAGES.items():
        made |= _page_of(ROOT / file, page)
    made |= {name: (ROOT / name).read_bytes() for name in RAW}
    made |= {f"assets/{name}": (HERE / name).read_bytes() for name in ASSETS}
    for group in reference.GROUPS:
        made[f"reference/{group.slug}.md"] = _reference(group)
    made |= {"reference/command.md": commands.command_page(), "reference/pytest.md": commands.plugin_page()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    for path in sorted(LIVE.glob("*.html")):
        files.append(File.generated(config, f"live/{path.name}", abs_src_path=str(path)))
    return files


def _page_of(path: Path, page: str) -> dict[str, str | bytes]:
    if path.suffix == ".md":
        return {page: path.read_text(encoding="utf-8")}
    if path.suffix == ".py":
        source = path.read_text(encoding="utf-8")
        return {page: f"# {path.name}\n\n```sh\npython examples/{path.name}\n```\n\n```python\n{source}```\n"}
    book = notebooks.execute(path) if EXECUTE else notebooks.read(path)
    text, beside = notebooks.page(book, path.stem)
    text += f'\n---\n\nThis page is a notebook: <a href="{path.name}" download>{path.name}</a>.\n'
    return {
        page: text,
        f"examples/{path.name}": path.read_bytes(),
        **{f"examples/{name}": data for name, data in beside.items()},
    }


def _reference(group: reference.Group) -> str:
    """A page of directives; a name of what stands on a page already is a link there."""
    parts = [f"# {group.title}", group.about]
    for name in group.all_names():
        first = _first_names[reference.home(name)]
        parts.append(f"::: {name}" if name == first else f"## {name} {{ #{name} }}\n\nThe same as [{first}][].")
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    """All groups with their names, each a link."""
    rows = []
    for group in reference.GROUPS:
        names = dict.fromkeys(_first_names[reference.home(name)] for name in group.all_names())
        own = [name for name in names if name in group.all_names()]
        links = " · ".join(f"[{name.rpartition('.')[2]}][{name}]" for name in own)
        rows.append(f"| [{group.title}]({group.slug}.md) | {links} |")
    rows += ["| [The command](command.md) | `headwise …` |", "| [The pytest plugin](pytest.md) | `--attention` |"]
    return "\n".join(["", "| to | |", "|---|---|", *rows, ""])


_first_names: dict[str, str] = {}
for _group in reference.GROUPS:
    for _name in _group.all_names():
        _first_names.setdefault(reference.home(_name), _name)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links into the repository into links to pages, and marked pictures into live pages."""
    where = page.file.src_uri
    if where == "reference/README.md":
        markdown += _index()
    page.meta.setdefault("search", {"boost": _boost(where)})
    origin = _ORIGINS.get(where, f"docs/{where}")

    def follow(match: re.Match[str]) -> str:
        return match[1] + _target(match[2], origin, where) + match[3]

    parts: list[str] = []
    last = 0
    for code in _FENCED.finditer(markdown):  # links in code are code
        parts += [_LINK.sub(follow, _framed(markdown[last : code.start()], where)), code[0]]
        last = code.end()
    parts.append(_LINK.sub(follow, _framed(markdown[last:], where)))
    return "".join(parts)


def on_page_context(context: TemplateContext, *, page: Page, config: MkDocsConfig, nav: Navigation) -> TemplateContext:
    """Say the words of the theme, such as "Search", in the language of the page."""
    where = page.file.src_uri
    config.theme["language"] = "zh" if _is_chinese(where) else "en"
    return context


def _is_chinese(where: str) -> bool:
    return where == "zh.md" or where.startswith("zh/")


def on_post_build(config: MkDocsConfig) -> None:
    """The links of llms.txt, which is no page, lead to the pages too."""
    path = Path(config.site_dir) / "llms.txt"
    text = _LINK.sub(lambda match: match[1] + _address(match[2]) + match[3], path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def _address(link: str) -> str:
    """Where the page is to which a link of docs/llms.txt leads."""
    page = _target(link, "docs/llms.txt", "llms.txt")
    return re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"


def _boost(where: str) -> float:
    """Which pages a search shows first: those that explain, then those to look up; the history last."""
    folder, _, name = where.removeprefix("zh/").rpartition("/")
    return {"concepts": 2.0, "reference": 1.5}.get(folder, 0.5 if name in ("changelog.md", "contributing.md") else 1.0)


def _target(link: str, origin: str, where: str) -> str:
    if "://" in link or link.startswith(("#", "mailto:")):
        return link
    file = os.path.normpath(PurePosixPath(origin).parent / link)
    path = PAGES.get(file) or file.removeprefix("docs/")
    return os.path.relpath(path, PurePosixPath(where).parent)


def _framed(markdown: str, where: str) -> str:
    up = "../" * where.count("/")

    def live(match: re.Match[str]) -> str:
        if not (LIVE / f"{match['name']}.html").exists():
            raise PluginError(f"{where}: there is no {match['name']}.html in {LIVE}: scripts/docs writes it")
        page = f"{up}live/{match['name']}.html{match['address'] or ''}"
        if (size := (LIVE / f"{match['name']}.html").stat().st_size) > LARGE:
            said = (
                "在这个浏览器里打开：{} MB，不需要服务器"
                if _is_chinese(where)
                else "Open it in this browser: {} MB, no server"
            )
            link = f'({page}){{: target="_blank" }}'
            return f"[{match['picture']}]{link}\n\n**[{said.format(round(size / 1e6))}]{link}**"
        frame = f'<iframe class="live" loading="lazy" src="{page}" title="{match["alt"]}"></iframe>'
        return f'{frame}\n\n[Open it alone]({page}){{: target="_blank" .alone }}'

    return _COMMENT.sub("\\1\n", _LIVE.sub(live, prose.adapt(markdown)))
