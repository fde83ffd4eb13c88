"""Parser for HTML pages in tests: it checks that elements are closed in order and that pages load and run nothing."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Parser that checks that elements are closed in order and collects the parts that tests inspect."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = self.rows = 0
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.kinds: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        assert not {"src", "onclick", "onerror"} & known.keys()
        self.scripts += tag == "script" and known.get("type") != "application/json"
        self.rows += tag == "tr"
        self.kinds += (known.get("class") or "").split()
        self.ids += [known["id"] or ""] if "id" in known else []
        self.targets += [known["href"] or ""] if "href" in known else []
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)
