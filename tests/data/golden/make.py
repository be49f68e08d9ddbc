#!/usr/bin/env python3
"""Makes tests/data/testdata: a small golden dataset of every format, by its real writer, and what is in it.

    tests/venv.sh .cache/venv && .cache/venv/bin/python tests/data/golden/make.py [DATASET...]

Each dataset is written into its own directory. Then the real reader reads it back, and what it says goes into
expect.json, which the Go tests and tests/suites/loaders/check.py compare with. Tokens are drawn from fixed seeds; times are
fixed wherever a writer stores them, so that the same versions make the same bytes.
"""

import hashlib
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "suites" / "loaders"))

import megatron_files  # noqa: E402,F401
import real  # noqa: E402
import sample_files  # noqa: E402,F401
import table_files  # noqa: E402,F401
import token_files  # noqa: E402,F401
from registry import DATASETS, TESTDATA  # noqa: E402


def expectation(golden, entry):
    """Adds to entry what the real reader finds in the golden dataset, or rather in a copy: some write beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = shutil.copytree(golden, Path(scratch, "dataset"))
        samples = list(real.READERS[entry["reader"]][0][1](path, entry, scratch))
    entry["shards"] = sum(len(split["files"]) for split in entry["splits"].values())
    if entry["format"] in ("mds", "litdata", "arrow", "parquet", "webdataset") and "block_size" not in entry:
        entry["samples"] = len(samples)
    if not entry["dtype"]:
        return
    with tempfile.TemporaryDirectory() as scratch:
        streams = list(real.streams(golden, entry, scratch))
    for split, tokens, starts in streams:
        found = {"tokens": len(tokens), "tokens_sha256": hashlib.sha256(tokens.tobytes()).hexdigest()}
        if starts is not None:
            found |= {"documents": len(starts) - 1, "document_starts": starts}
        entry["splits"][split] |= found
    entry["tokens"] = sum(len(tokens) for _, tokens, _ in streams)
    if all(starts is not None for _, _, starts in streams):
        entry["documents"] = sum(len(starts) - 1 for _, _, starts in streams)


def main(names):
    listed = TESTDATA / "expect.json"
    expect = json.loads(listed.read_text()) if listed.exists() and names else {}
    for name, (write, facts) in DATASETS.items():
        if names and name not in names:
            continue
        random.seed(0)
        out = TESTDATA / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        splits = write(out)
        entry = dict(facts, splits={split: {"files": files} for split, files in splits.items()})
        expectation(out, entry)
        expect[name] = entry
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        print(f"{name}: {entry['shards']} shards, {entry.get('tokens', '-')} tokens, {size} bytes", flush=True)
    listed.write_text(json.dumps(dict(sorted(expect.items())), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
