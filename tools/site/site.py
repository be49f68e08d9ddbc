"""Hooks of mkdocs: where links lead that leave docs/, and which pages the search lists first."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
BOOST = {"guide": 10, "reference": 3}
"""A page's weight in the search, by its folder. The other pages, benchmarks and design, have 1."""


def on_page_markdown(markdown, page, config, **_):
    folder = page.file.src_uri.partition("/")[0]
    page.meta["search"] = {"boost": BOOST.get(folder, 1)}

    def outward(match):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[1]))
        if path.startswith("docs/"):
            return match[1]
        found = ROOT / path
        if not found.exists():
            raise ValueError(f"docs/{page.file.src_uri} links to {path}, which is not there")
        return f"{config.repo_url}/{'tree' if found.is_dir() else 'blob'}/main/{path}"

    return LINK.sub(outward, markdown)
