"""Hook of mkdocs: links that lead out of docs/ become the name of the file in the repository."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return the page's text with such links replaced."""
    here = posixpath.dirname(page.file.src_uri)

    def named(link: re.Match[str]) -> str:
        where = posixpath.normpath(posixpath.join("docs", here, link[2]))
        return link[0] if where.startswith("docs/") else f"{link[1]} (`{where}`)"

    return _OUTSIDE.sub(named, markdown)
