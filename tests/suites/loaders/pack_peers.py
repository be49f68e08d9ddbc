"""Packs the same texts by hbmfs pack and by the packages that people tokenize with, in turn, and compares tokens and rates.

    python tests/suites/loaders/pack_peers.py --hbmfs bin/hbmfs --tokenizer tokenizer.json --rounds 3 web/*.parquet
    python tests/suites/loaders/pack_peers.py --tokenizer tokenizer.json --peers tokenizers,tiktoken,map web/*.jsonl.gz
    python tests/suites/loaders/pack_peers.py --make-corpus DIRECTORY --mb 200 --tokenizer tokenizer.json /usr/share/doc ~/go/pkg/mod

Sources are JSON Lines, gzipped or not, or Parquet, with the key or column "text". The tokenizer is a byte-level BPE with GPT-2's pattern,
as the tokenizers package writes it. All peers have as many threads or processes as there are cores:

    tokenizers  Tokenizer.encode_batch_fast        map        datasets.load_dataset(...).map(...), which does the same in processes
    tiktoken    Encoding.encode_ordinary_batch     datatrove  its reader and DocumentTokenizer, for JSON Lines
    megatron    tokenizers, and Megatron's IndexedDatasetBuilder

The tokens of all must be equal. The table gives MB/s of text, CPU seconds, and peak memory of the largest process. --make-corpus writes
such sources and a tokenizer trained on them, out of text files below other directories.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

END = "<|endoftext|>"
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""  # GPT-2's, as tiktoken has it


def batches(sources: list[Path], size: int = 1000) -> Iterator[list[str]]:
    """Yields the texts of the sources, some at a time."""
    for source in sources:
        if source.suffix == ".parquet":
            import pyarrow.parquet

            for batch in pyarrow.parquet.ParquetFile(source).iter_batches(size, columns=["text"]):
                yield batch.column(0).to_pylist()
            continue
        texts: list[str] = []
        with gzip.open(source, "rt", encoding="utf-8") if source.suffix == ".gz" else source.open(encoding="utf-8") as lines:
            for line in lines:
                texts.append(json.loads(line)["text"])
                if len(texts) == size:
                    yield texts
                    texts = []
        yield texts


def by_tokenizers(sources: list[Path], tokenizer: str, out: Path) -> None:
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    encoder.encode_special_tokens = True  # a document that has the name of the end is text
    end = encoder.token_to_id(END)
    with (out / "data.bin").open("wb") as f:
        for texts in batches(sources):
            for e in encoder.encode_batch_fast(texts):
                np.array([*e.ids, end], np.uint16).tofile(f)


def by_tiktoken(sources: list[Path], tokenizer: str, out: Path) -> None:
    import tiktoken
    from tokenizers.pre_tokenizers import ByteLevel

    bytes_of = {c: i for i, c in enumerate(byte_characters())}
    assert set(ByteLevel.alphabet()) == set(bytes_of)
    vocabulary = json.loads(Path(tokenizer).read_text())["model"]["vocab"]
    end = vocabulary.pop(END)
    ranks = {bytes(bytes_of[c] for c in token): number for token, number in vocabulary.items()}
    encoder = tiktoken.Encoding("trained", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END: end})
    with (out / "data.bin").open("wb") as f:
        for texts in batches(sources):
            for ids in encoder.encode_ordinary_batch(texts, num_threads=os.cpu_count()):
                np.array([*ids, end], np.uint16).tofile(f)


def byte_characters() -> list[str]:
    """The characters that byte-level tokenizers write for the bytes 0 to 255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b if b in plain else next(others)) for b in range(256)]


def by_map(sources: list[Path], tokenizer: str, out: Path) -> None:
    import datasets
    from tokenizers import Tokenizer

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    encoder = Tokenizer.from_file(tokenizer)
    encoder.encode_special_tokens = True  # a document that has the name of the end is text
    end = encoder.token_to_id(END)
    datasets.disable_progress_bars()

    def tokenize(batch: dict) -> dict:
        encoder.encode_special_tokens = True  # which does not come along into a process
        return {"ids": [[*e.ids, end] for e in encoder.encode_batch_fast(batch["text"])]}

    kind = "parquet" if sources[0].suffix == ".parquet" else "json"
    texts = datasets.load_dataset(kind, data_files=[str(s) for s in sources], split="train", cache_dir=str(out / "cache"))
    features = datasets.Features({"ids": datasets.List(datasets.Value("uint16"))})
    made = texts.map(tokenize, batched=True, num_proc=os.cpu_count(), remove_columns=texts.column_names, features=features)
    with (out / "data.bin").open("wb") as f:
        for chunk in made.data.column("ids").chunks:
            chunk.flatten().to_numpy().tofile(f)


def by_datatrove(sources: list[Path], tokenizer: str, out: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    (source,) = sources
    steps = [
        JsonlReader(str(source.parent), glob_pattern=source.name),
        DocumentTokenizer(str(out), tokenizer_name_or_path=tokenizer, eos_token=END, shuffle_documents=False, batch_size=1000),
    ]
    LocalPipelineExecutor(steps, tasks=1, logging_dir=str(out / "logs")).run()


def by_megatron(sources: list[Path], tokenizer: str, out: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(tokenizer)
    encoder.encode_special_tokens = True  # a document that has the name of the end is text
    builder = IndexedDatasetBuilder(str(out / "data.bin"), dtype=np.uint16)
    end = encoder.token_to_id(END)
    for texts in batches(sources):
        for e in encoder.encode_batch(texts):
            ids = [*e.ids, end]
            builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
    builder.finalize(str(out / "data.idx"))


PEERS = {"tokenizers": by_tokenizers, "tiktoken": by_tiktoken, "map": by_map, "datatrove": by_datatrove, "megatron": by_megatron}


def make_corpus(out: Path, roots: list[Path], mb: int, tokenizer: str) -> None:
    """Writes texts found below roots as Parquet and as gzipped JSON Lines, four files each, and trains a tokenizer on some of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    names = sorted(p for root in roots for p in root.rglob("*") if p.suffix in (".go", ".md", ".txt", ".html", ".py", ".rst") and p.is_file())
    random.Random(1).shuffle(names)
    texts: list[str] = []
    left = mb * 1_000_000
    for name in names:
        raw = name.read_bytes()[:100_000]
        text = raw.decode(errors="ignore")
        if left > 0 and text:
            texts.append(text)
            left -= len(text.encode())
    out.mkdir(parents=True, exist_ok=True)
    for i in range(4):
        part = texts[i * len(texts) // 4 : (i + 1) * len(texts) // 4]
        pq.write_table(pa.table({"text": part}), out / f"part-{i}.parquet", row_group_size=1000)
        with gzip.open(out / f"part-{i}.jsonl.gz", "wt", compresslevel=6) as f:
            f.writelines(json.dumps({"text": text}) + "\n" for text in part)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=50256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    trained.train_from_iterator(texts[: len(texts) // 16], trainer)
    trained.add_special_tokens([END])
    trained.save(tokenizer)
    listed = json.loads(Path(tokenizer).read_text())  # where the builder of tiktoken's vocabulary looks for it
    listed["model"]["vocab"][END] = trained.token_to_id(END)
    Path(tokenizer).write_text(json.dumps(listed))
    print(f"{len(texts)} texts of {sum(len(t.encode()) for t in texts) / 1e6:.0f} MB in {out}, a tokenizer of {trained.get_vocab_size()} in {tokenizer}")


def tokens_of(out: Path) -> np.ndarray:
    data = [*out.glob("*.bin"), *out.glob("*.ds")]
    assert len(data) == 1, data
    return np.fromfile(data[0], dtype=np.uint16)


def measure(argv: list[str]) -> tuple[float, float, float]:
    """Returns seconds, CPU seconds with those of child processes, and peak MiB of a command."""
    start = time.monotonic()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{argv}: {said.decode()[-2000:]}")
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def report(name: str, runs: list[tuple[float, float, float]], size: float, base: float) -> None:
    rates = [size / r[0] for r in runs]
    rate, cpu, peak = statistics.median(rates), statistics.median(r[1] for r in runs), max(r[2] for r in runs)
    times = f"  1/{base / rate:.1f} of pack's rate" if base else ""
    print(f"{name:12} {rate:6.1f} MB/s ({min(rates):.1f} to {max(rates):.1f})  {cpu:6.1f} CPU s  {peak:6.0f} MiB{times}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="+")
    parser.add_argument("--hbmfs", default="bin/hbmfs")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="tokenizers,tiktoken,map", help="of tokenizers, tiktoken, map, datatrove, megatron")
    parser.add_argument("--make-corpus", type=Path, metavar="DIRECTORY")
    parser.add_argument("--mb", type=int, default=200, help="of text that --make-corpus looks for")
    parser.add_argument("--only", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make_corpus:
        make_corpus(args.make_corpus, args.source, args.mb, args.tokenizer)
        return
    sources = [source.resolve() for source in args.source]
    if args.only:
        PEERS[args.only](sources, args.tokenizer, args.out)
        return
    size = sum(len(text.encode()) for texts in batches(sources) for text in texts) / 1e6
    results: dict[str, list[tuple[float, float, float]]] = {"pack": []} | {name: [] for name in args.peers.split(",")}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as top:
        expect = None
        for n in range(args.rounds):
            for name, runs in results.items():
                out = Path(top) / "out"
                out.mkdir()
                if name == "pack":
                    argv = [args.hbmfs, "pack", "--tokenizer", args.tokenizer, "--eot", END, *map(str, sources), str(out)]
                else:
                    argv = [sys.executable, __file__, "--tokenizer", args.tokenizer, "--only", name, "--out", str(out), *map(str, sources)]
                load = os.getloadavg()[0]
                runs.append(measure(argv))
                tokens = tokens_of(out)
                if expect is None:
                    expect = tokens
                assert np.array_equal(tokens, expect), f"{name} gives other tokens"
                shutil.rmtree(out)
                report(f"{n + 1}. {name}", runs[-1:], size, 0)
                print(f"   at load {load:.1f}, {len(tokens)} tokens", flush=True)
    assert expect is not None
    print(f"{size:.0f} MB of text, {len(expect)} tokens, equal in all; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {args.rounds} (range)")
    base = statistics.median(size / r[0] for r in results["pack"])
    for name, runs in results.items():
        report(name, runs, size, base)


if __name__ == "__main__":
    main()
