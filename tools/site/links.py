"""A hook of mkdocs: links from docs/ to other files of the repository lead to GitHub on the site."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")


def on_page_markdown(markdown, page, config, **_):
    def outward(match):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), match[1]))
        if path.startswith("docs/"):
            return match[1]
        found = ROOT / path
        if not found.exists():
            raise ValueError(f"docs/{page.file.src_uri} links to {path}, which is not there")
        return f"{config.repo_url}/{'tree' if found.is_dir() else 'blob'}/main/{path}"

    return LINK.sub(outward, markdown)
