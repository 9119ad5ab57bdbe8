"""A hook of MkDocs: the site that was built loads nothing from elsewhere, and its links lead somewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

# What a browser fetches by itself, and where it says what.
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


class _Names(HTMLParser):
    """What a page fetches, what it links to, and which anchors it has."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what an element names."""
        named = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := named.get(key))}
        where = named.get(_FETCHED.get(tag, ""))
        if where:
            self.fetched.append(where)
        if tag == "a" and named.get("href"):
            self.links.append(str(named["href"]))


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Looks through every page.

    Raises:
        PluginError: a page loads something from another host, or links to a file or an anchor that is not there.
    """
    site = Path(config.site_dir)
    pages = {path.relative_to(site).as_posix(): _read(path) for path in sorted(site.rglob("*.html"))}
    wrong = [
        f"{name}: {complaint}" for name, page in pages.items() for complaint in _complaints(site, pages, name, page)
    ]
    if wrong:
        raise PluginError("the site is not sound:\n  " + "\n  ".join(wrong))


def _read(path: Path) -> _Names:
    names = _Names()
    names.feed(path.read_text(encoding="utf-8"))
    return names


def _complaints(site: Path, pages: dict[str, _Names], name: str, page: _Names) -> list[str]:
    foreign = [f"loads {target} from another host" for target in page.fetched if urlsplit(target).netloc]
    if name == "404.html":  # its links are those of the site's root, wherever that will be
        return foreign
    lost = []
    for target in (*page.fetched, *page.links):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            continue
        path = normpath(str(Path(name).parent / unquote(parts.path))) if parts.path else name
        if not (site / path).exists():
            lost.append(f"{target} is not there")
        elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].anchors:
            lost.append(f"{target}: no such anchor")
    return foreign + lost
