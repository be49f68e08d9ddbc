"""plot.py PAGE.md PLOT.svg: draw the table of docs/benchmarks.md below "Paths into HBM", the rates as parts of the pinned copy.

The page is written by hand from what tests/bench/gpu/run.sh printed, so the plot is made of the page: they cannot differ.
"""

import html
import re
import sys

WIDTH, LABELS, ROW, BAR, TOP = 960, 360, 26, 16, 44


def rows(page: str) -> list[tuple[str, float, float]]:
    """Return (name, GB/s, part of the wall) for each row of the first table of the section."""
    out = []
    for line in page.partition("\n## Paths into HBM\n")[2].splitlines():
        if out and not line.startswith("|"):
            break
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"[0-9.]+", cells[2]):
            out.append((f"{cells[0]}, {cells[1]}", float(cells[2]), float(cells[3])))
    return out


def svg(table: list[tuple[str, float, float]]) -> str:
    """Draw a bar for each row."""
    height = TOP + ROW * len(table) + 30
    scale = WIDTH - LABELS - 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="24" font-size="15">Into HBM, page cache warm: part of a pinned copy (dashed line)</text>',
    ]
    for i, (name, rate, part) in enumerate(table):
        y = TOP + ROW * i
        parts.append(f'<text x="12" y="{y + 13}">{html.escape(name)}</text>')
        parts.append(f'<rect x="{LABELS}" y="{y}" width="{part * scale:.1f}" height="{BAR}" fill="#3d7a5a"/>')
        end = LABELS + part * scale
        place = f'x="{end - 6:.1f}" text-anchor="end" fill="#ffffff"' if part > 0.2 else f'x="{end + 6:.1f}"'
        parts.append(f'<text {place} y="{y + 13}">{rate:.1f} GB/s</text>')
    wall = LABELS + scale
    parts.append(f'<line x1="{wall}" x2="{wall}" y1="{TOP - 8}" y2="{height - 22}" stroke="#888888" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{wall}" y="{height - 8}" text-anchor="middle" fill="#555555">pinned copy</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    page, plot = sys.argv[1:]
    with open(page, encoding="utf-8") as f:
        table = rows(f.read())
    if not table:
        sys.exit(f"plot.py: {page} has no table with five columns and rates below 'Paths into HBM'")
    with open(plot, "w", encoding="utf-8") as f:
        f.write(svg(table))


if __name__ == "__main__":
    main()
