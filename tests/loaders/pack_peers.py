"""Packs the same JSON Lines by hbmfs pack, datatrove's tokenizer step and Megatron's indexed_dataset builder, in turn.

    python tests/loaders/pack_peers.py --hbmfs bin/hbmfs --tokenizer gpt2.json --rounds 3 web.jsonl

gpt2.json is GPT-2's tokenizer.json; both others read it by the tokenizers package, with as many threads as there are
cores. The tokens of all three must be equal. The table gives MB/s of the input, the CPU seconds, and the peak memory.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def by_datatrove(source: Path, tokenizer: str, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    steps = [
        JsonlReader(str(source.parent), glob_pattern=source.name),
        DocumentTokenizer(str(out), tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False, batch_size=1000),
    ]
    LocalPipelineExecutor(steps, tasks=1, logging_dir=str(out / "logs")).run()


def by_megatron(source: Path, tokenizer: str, out: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    builder = IndexedDatasetBuilder(str(out / "data.bin"), dtype=np.uint16)
    end = encoder.token_to_id("<|endoftext|>")

    def add(texts: list[str]) -> None:
        for e in encoder.encode_batch(texts):
            ids = [*e.ids, end]
            builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])

    texts: list[str] = []
    with source.open(encoding="utf-8") as f:
        for line in f:
            texts.append(json.loads(line)["text"])
            if len(texts) == 1000:
                add(texts)
                texts = []
    add(texts)
    builder.finalize(str(out / "data.idx"))


def tokens_of(out: Path) -> np.ndarray:
    data = [*out.glob("*.bin"), *out.glob("*.ds")]
    assert len(data) == 1, data
    return np.fromfile(data[0], dtype=np.uint16)


def measure(argv: list[str]) -> tuple[float, float, float]:
    """Returns seconds, CPU seconds and peak MiB of a command."""
    start = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{argv}: {process.stderr.read().decode()[-2000:]}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--hbmfs", default="bin/hbmfs")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["datatrove", "megatron"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        {"datatrove": by_datatrove, "megatron": by_megatron}[args.only](args.source.resolve(), args.tokenizer, args.out)
        return
    size = args.source.stat().st_size / 1e6
    again = [sys.executable, __file__, str(args.source), "--tokenizer", args.tokenizer]
    results: dict[str, list[tuple[float, float, float]]] = {"hbmfs pack": [], "datatrove": [], "Megatron's builder": []}
    with tempfile.TemporaryDirectory() as top:
        expect = None
        for _ in range(args.rounds):
            for name, runs in results.items():
                out = Path(top) / "out"
                out.mkdir()
                if name == "hbmfs pack":
                    argv = [args.hbmfs, "pack", "--from", "jsonl", str(args.source), str(out)]
                else:
                    argv = [*again, "--only", "datatrove" if name == "datatrove" else "megatron", "--out", str(out)]
                runs.append(measure(argv))
                tokens = tokens_of(out)
                if expect is None:
                    expect = tokens
                assert np.array_equal(tokens, expect), f"{name} gives other tokens"
                shutil.rmtree(out)
    print(f"{size:.0f} MB, {len(expect)} tokens, equal in all; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {args.rounds} (range)")
    base = statistics.median(size / r[0] for r in results["hbmfs pack"])
    for name, runs in results.items():
        rates = [size / r[0] for r in runs]
        rate, cpu, peak = statistics.median(rates), statistics.median(r[1] for r in runs), max(r[2] for r in runs)
        print(f"{name:20} {rate:6.1f} MB/s ({min(rates):.1f} to {max(rates):.1f})  {cpu:6.1f} CPU s  {peak:6.0f} MiB  1/{base / rate:.1f} of pack's rate")


if __name__ == "__main__":
    main()
