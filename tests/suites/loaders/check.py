#!/usr/bin/env python3
"""Reads the golden datasets with their real packages at two places, and says where the samples differ.

    check.py SOURCE MOUNT [--views] [--decoded MOUNT] [--json] [--only DATASET]...

SOURCE is tests/data/testdata, MOUNT the same datasets through a mount (or a copy). A line per reader and dataset:

    OK    numpy.memmap  nanogpt  2 samples

With --views it reads the files in MOUNT/.hbmfs/views instead, and compares them with what the real reader of each
format makes of SOURCE. --decoded names a mount with a cache, which shows some datasets decoded: there readers that know
nothing of compression must find what the real reader of compressed shards finds in SOURCE. The exit status is 0 when
everything agreed, 1 when something differed or could not be read.
Nothing is written below SOURCE or MOUNT: readers that need room get a temporary directory.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np  # noqa: E402
import real  # noqa: E402

LONGEST = 120  # seconds for one check; some readers wait for ever for a file that is not as they expect


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--views", action="store_true", help="check the views instead of the datasets")
    parser.add_argument("--decoded", type=Path, metavar="MOUNT", help="check what this mount decodes, too")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--only", action="append", metavar="DATASET", help="check this dataset alone")
    options = parser.parse_args()
    expect = json.loads((options.source / "expect.json").read_text())
    checks = list(view_checks(expect) if options.views else reader_checks(expect))
    if options.decoded:
        checks += decoded_checks(expect, options.decoded)
    real.preload()
    failed = done = 0
    for check in checks:
        if options.only and check["dataset"] not in options.only:
            continue
        began = time.monotonic()
        result = {"reader": check["reader"], "dataset": check["dataset"], **apart(check, options)}
        result["seconds"] = round(time.monotonic() - began, 1)
        report(result, options.json)
        done += 1
        failed += not result["ok"]
    if not options.json:
        print(f"{done - failed} agreed, {failed} failed")
    return 1 if failed or not done else 0


def report(result, as_json):
    if as_json:
        print(json.dumps(result), flush=True)
    elif result["ok"]:
        print(f"OK    {result['reader']}  {result['dataset']}  {result['samples']} samples", flush=True)
    else:
        print(f"FAIL  {result['reader']}  {result['dataset']}  {result['error']}", flush=True)


def apart(check, options):
    """Runs one check in a process of its own: a reader that gets SIGBUS or hangs must not take the others along."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=run, args=(check, options, send))
    process.start()
    send.close()
    try:
        if not receive.poll(LONGEST):
            return {"ok": False, "error": f"no answer in {LONGEST} s"}
        return receive.recv()
    except EOFError:
        process.join()
        return {"ok": False, "error": f"the reader died with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def run(check, options, send):
    os.setsid()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            send.send({"ok": True, "samples": check["run"](options.source, options.mount, Path(scratch))})
    except Exception as e:
        send.send({"ok": False, "error": f"{type(e).__name__}: {e}", "traceback": traceback.format_exc()})


def require(condition, message):
    if not condition:
        raise AssertionError(message)


# --- the datasets ---------------------------------------------------------------------------------------------------


def reader_checks(expect):
    for name, entry in expect.items():
        for reader, read in real.READERS[entry["reader"]]:
            yield {"reader": reader, "dataset": name, "run": same_samples(read, read, name, entry)}


def decoded_checks(expect, mount):
    def there(check):
        return lambda source, _, scratch: check(source, mount, scratch)

    for name, entry in expect.items():
        if entry["reader"] == "mds-compressed":
            for _, stored in real.READERS["mds-compressed"]:
                for reader, read in real.READERS["mds"]:
                    run = there(same_samples(stored, read, name, entry))
                    yield {"reader": reader + ", decoded", "dataset": name, "run": run}


def same_samples(read_source, read_mount, name, entry):
    def check(source, mount, scratch):
        found = []
        for place, root, read in (("source", source, read_source), ("mount", mount, read_mount)):
            room = scratch / place
            room.mkdir()
            found.append([real.plain(sample) for sample in read(root / name, entry, room)])
        there, here = found
        require(len(there) > 0, "the source has no samples")
        require(len(there) == len(here), f"{len(there)} samples at the source, {len(here)} at the mount")
        for i, (a, b) in enumerate(zip(there, here)):
            require(a == b, f"sample {i} differs")
        return len(there)

    return check


# --- the views ------------------------------------------------------------------------------------------------------


def view_checks(expect):
    for name, entry in expect.items():
        if entry["reader"] == "megatron-pieces":
            yield {"reader": "document.bin + document.idx", "dataset": name, "run": pieces_view(name, entry)}
        # Compressed chunks and LitData's rows in Arrow's format have no fields, and its tokens no trees.
        if entry["format"] in FIELDS and entry.get("view", True) and "block_size" not in entry and name not in ("litdata-arrow", "litdata-zstd"):
            yield {"reader": "fields", "dataset": name, "run": fields_view(name, entry)}
        if not entry["dtype"] or not entry.get("view", True):
            continue
        for reader, check in (("tokens.npy", tokens_view), ("documents.npy", documents_view)):
            if reader == "tokens.npy" or "documents" in entry:
                yield {"reader": reader, "dataset": name, "run": each_split(check, name, entry)}
        if entry["dtype"] in ("uint16", "int32") and "documents" in entry:
            yield {"reader": "megatron.bin + .idx", "dataset": name, "run": each_split(megatron_view, name, entry)}


def each_split(check, name, entry):
    def run_each(source, mount, scratch):
        views = mount / ".hbmfs" / "views" / name
        total = 0
        for split, tokens, starts in real.streams(source / name, entry, scratch):
            total += check(views / split, entry, tokens, starts)
        return total

    return run_each


def tokens_view(views, entry, tokens, starts):
    for found in (
        np.load(views / "tokens.npy", mmap_mode="r"),
        np.load(views / "tokens.npy"),
        np.memmap(views / "tokens.bin", dtype=tokens.dtype, mode="r"),
    ):
        require(found.dtype == tokens.dtype, f"{found.dtype}, want {tokens.dtype}")
        require(found.shape == tokens.shape, f"shape {found.shape}, want {tokens.shape}")
        require(found.tobytes() == tokens.tobytes(), "the tokens differ")
    return len(tokens)


def documents_view(views, entry, tokens, starts):
    found = np.load(views / "documents.npy", mmap_mode="r")
    require(found.dtype == np.int64, f"{found.dtype}, want int64")
    require(found.tolist() == starts, f"{found.tolist()[:9]}..., want {starts[:9]}...")
    return len(starts) - 1


def megatron_view(views, entry, tokens, starts):
    for mmap in (True, False):
        dataset = real.indexed_dataset(views / "megatron", entry, mmap)
        sequences = [dataset[i] for i in range(len(dataset))]
        if entry.get("multimodal"):
            sequences = [sequence for sequence, _ in sequences]
        ends = np.cumsum([0] + [len(sequence) for sequence in sequences])
        require(np.concatenate(sequences).tobytes() == tokens.tobytes(), "the tokens differ")
        require(sequences[0].dtype == tokens.dtype, f"{sequences[0].dtype}, want {tokens.dtype}")
        require(ends[dataset.document_indices].tolist() == starts, "the documents differ")
    return len(starts) - 1


def parquet_rows(path, entry, scratch):
    """Rows without nulls, and with the parts of structures by their names."""
    for row in real.parquet(path, entry, scratch):
        image = row.pop("image", {})
        if image != {}:
            row |= {f"image.{part}": image and image[part] for part in ("bytes", "path")}
        yield {name: b"" if value is None else value for name, value in row.items()}


# Formats whose samples have fields in the views, with the reader that they must equal.
FIELDS = {"mds": real.mds_local, "litdata": real.litdata, "arrow": real.READERS["arrow"][0][1], "webdataset": real.webdataset, "parquet": parquet_rows}


def fields_view(name, entry):
    """Every field of every sample, as the format's own reader returns it."""

    def check(source, mount, scratch):
        wanted = iter(FIELDS[entry["format"]](source / name, entry, scratch))
        total = 0
        for split in entry["splits"]:
            views = mount / ".hbmfs" / "views" / name / split / "fields"
            about = json.loads((views / "fields.json").read_text())
            require(sum(shard["samples"] for shard in about["shards"]) == about["samples"], "the shards have other samples")
            fields = {field["name"]: (field, read_field(views, field)) for field in about["fields"] if "missing" not in field}
            require(len(fields) == len(about["fields"]), f"not shown: {about['fields']}")
            for i, sample in zip(range(about["samples"]), wanted):
                if not isinstance(sample, dict):
                    sample = {str(k): value for k, value in enumerate(sample)}
                sample.pop("__key__", None)
                require(set(sample) <= set(fields), f"sample {i} has the fields {set(sample)}, want {set(fields)}")
                for key, (field, values) in fields.items():
                    same_value(f"{key} of sample {i}", sample.get(key, b""), values(i), field)
                total += 1
        require(next(wanted, None) is None, f"there are more than {total} samples")
        return total

    return check


def read_field(views, field):
    if field["kind"] == "dense":
        return np.load(views / f"{field['file']}.npy", mmap_mode="r").__getitem__
    offsets, values = (np.load(views / f"{field['file']}.{part}.npy", mmap_mode="r") for part in ("offsets", "values"))
    require(offsets[0] == 0 and offsets[-1] == len(values), f"the offsets end at {offsets[-1]} of {len(values)}")
    return lambda i: values[offsets[i] : offsets[i + 1]]


def same_value(what, wanted, found, field):
    if isinstance(wanted, dict):
        require(json.loads(found.tobytes()) == wanted, f"{what} differs")
        return
    if isinstance(wanted, str):
        wanted = wanted.encode()
    if isinstance(wanted, bytes):
        require(found.tobytes() == wanted, f"{what} is {found.tobytes()[:40]}, want {wanted[:40]}")
        return
    kind = getattr(wanted, "dtype", None)
    wanted = np.asarray(wanted, dtype=None if kind is not None else field["dtype"])
    require(found.dtype == wanted.dtype, f"{what} is {found.dtype}, want {wanted.dtype}")
    require(found.shape == wanted.shape or field["kind"] == "ragged", f"{what} has the shape {found.shape}, want {wanted.shape}")
    require(found.tobytes() == wanted.tobytes(), f"{what} differs")


def pieces_view(name, entry):
    def check(source, mount, scratch):
        ((_, tokens, starts),) = real.streams(source / name, entry, scratch)
        view = mount / ".hbmfs" / "views" / name / "document"
        dataset = real.indexed_dataset(view, entry)
        require(b"".join(dataset[i].tobytes() for i in range(len(dataset))) == tokens.tobytes(), "the tokens differ")
        require(len(dataset.document_indices) == len(starts), "the documents differ")
        return len(dataset)

    return check


if __name__ == "__main__":
    sys.exit(main())
