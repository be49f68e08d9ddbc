"""table.py RESULT.json...: a Markdown table of what `hbmfs bench --json` measured, as docs/benchmarks.md has them.

    hbmfs bench --json FILE >result.json
    python3 tests/bench/gpu/table.py result.json
"""

import json
import sys

MIB = 1 << 20


def table(result: dict) -> str:
    """Return the table below a line that says what it was measured with."""
    gpus = ", ".join(g["name"] for g in result["gpus"] or [{"name": "host"}])
    lines = [
        f"{gpus}; {result['size'] / 1e9:.1f} GB, blocks of {result['block'] // MIB} MiB, windows of {result['window'] // MIB} MiB, "
        f"depth {result['depth']}, {result['cpus']} CPUs, page cache {'in huge pages' if result['refilled'] else 'as it was'}. "
        f"Wall: {result['wall_gb_per_s']:.1f} GB/s.",
        "",
        "| path | way | GB/s | of wall | CPU s/GB |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if row.get("skip"):
            lines.append(f"| {row['path']} | {row['mode']} | - | - | {row['skip']} |")
            continue
        each = "".join(f" {rate:.1f}" for rate in row.get("gb_per_s_per_gpu", []))
        rate = f"{row['gb_per_s']:.2f}" + (f" ({each.strip()})" if each else "")
        lines.append(f"| {row['path']} | {row['mode']} | {rate} | {row['of_wall']:.2f} | {row['cpu_s_per_gb']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as f:
            print(table(json.load(f)))


if __name__ == "__main__":
    main()
