#!/usr/bin/env python3
"""Makes tests/testdata: a small golden dataset of every format, by its real writer, and what is in it.

    tests/venv.sh .cache/venv && .cache/venv/bin/python tests/golden/make.py [DATASET...]

Each dataset is written into its own directory. Then the real reader reads it back, and what it says goes into
expect.json, which the Go tests and tests/readers/check.py compare with. Tokens are drawn from fixed seeds; times are
fixed wherever a writer stores them, so that the same versions make the same bytes.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import struct
import sys
import tarfile
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "readers"))

import numpy as np  # noqa: E402
import real  # noqa: E402

TESTDATA = TESTS / "testdata"
EOT = 50256  # GPT-2's <|endoftext|>
WHEN = 1_700_000_000  # the time that stands in archives, seconds since 1970

DATASETS = {}


def dataset(name, format, dtype=None, reader=None, **facts):
    """Registers a function that writes one dataset and returns the shards of each split."""

    def register(write):
        DATASETS[name] = (write, {"format": format, "reader": reader or format, "dtype": dtype, **facts})
        return write

    return register


def documents(seed, count, dtype="u2", longest=60, eot=True):
    """Draws documents of frequent and rare tokens, as text has them, each with <|endoftext|> at its end."""
    rng = np.random.default_rng(seed)
    vocabulary = EOT if np.dtype(dtype).itemsize == 2 else 128_000
    for _ in range(count):
        tokens = (vocabulary ** rng.random(rng.integers(2, longest))).astype(dtype)
        yield np.append(tokens, tokens.dtype.type(EOT)) if eot else tokens


def one(*files):
    return {"": list(files)}


# --- Megatron -------------------------------------------------------------------------------------------------------


def write_megatron(prefix, docs, dtype, modes=None):
    """docs is a list of documents, each a list of sequences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type, multimodal=modes is not None)
    for i, sequences in enumerate(docs):
        builder.add_document(
            torch.from_numpy(np.concatenate(sequences).astype("i8" if np.dtype(dtype).kind != "f" else "f8")),
            [len(sequence) for sequence in sequences],
            modes[i] if modes else None,
        )
    builder.finalize(f"{prefix}.idx")


@dataset("megatron", "megatron", "uint16")
def megatron(out):
    docs = [[doc] for doc in documents(1, 12)]
    docs.insert(5, [*documents(2, 3)])  # a document of three sequences
    write_megatron(out / "corpus_text_document", docs, "u2")
    return one("corpus_text_document.bin")


@dataset("megatron-merge", "megatron", "int32")
def megatron_merge(out):
    write_megatron(out / "a_text_document", [[doc] for doc in documents(3, 7, "i4")], "i4")
    write_megatron(out / "b_text_document", [[*documents(4, 2, "i4")], [*documents(5, 1, "i4")]], "i4")
    return one("a_text_document.bin", "b_text_document.bin")


@dataset("megatron-multimodal", "megatron", "int32", multimodal=True)
def megatron_multimodal(out):
    docs = [[*documents(6 + i, 2, "i4", eot=False)] for i in range(4)]
    write_megatron(out / "pairs", docs, "i4", modes=[[0, 1]] * 4)
    return one("pairs.bin")


def scores(seed):
    return [np.random.default_rng(seed).standard_normal(n) for n in (5, 3, 8)]


@dataset("megatron-float-core", "megatron", "float64")
def megatron_float_core(out):
    write_megatron(out / "scores_document", [[doc] for doc in scores(11)], "f8")
    return one("scores_document.bin")


@dataset("megatron-float-neox", "megatron", "float32", reader="megatron-neox")
def megatron_float_neox(out):
    """By struct, as GPT-NeoX's MMapIndexedDataset.Index.writer does: NeoX has no package on an index."""
    docs = [doc.astype("f4") for doc in scores(12)]
    lengths = [len(doc) for doc in docs]
    pointers = [4 * sum(lengths[:i]) for i in range(len(docs))]
    with open(out / "scores_document.idx", "wb") as f:
        f.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 6, len(docs), len(docs) + 1))
        f.write(struct.pack(f"<{len(docs)}i", *lengths))
        f.write(struct.pack(f"<{len(docs)}q", *pointers))
        f.write(struct.pack(f"<{len(docs) + 1}q", *range(len(docs) + 1)))
    (out / "scores_document.bin").write_bytes(np.concatenate(docs).tobytes())
    return one("scores_document.bin")


@dataset("megatron-pieces", "megatron", "uint16", reader="megatron-pieces")
def megatron_pieces(out):
    """As the Pile lies on the Hub for Pythia: all pieces of one size but the last, cut without regard to documents."""
    write_megatron(out / "document", [[doc] for doc in documents(13, 46)], "u2")
    data = (out / "document.bin").read_bytes()
    (out / "document.bin").unlink()
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    assert len(pieces) == 3 and len(pieces[-1]) < 1000, len(data)
    names = [f"document-{i:05d}-of-{len(pieces) - 1:05d}.bin" for i in range(len(pieces))]
    for name, piece in zip(names, pieces):
        (out / name).write_bytes(piece)
    return one(*names)


# --- token files ----------------------------------------------------------------------------------------------------


def write_memmap(path, tokens):
    array = np.memmap(path, dtype=tokens.dtype, mode="w+", shape=tokens.shape)
    array[:] = tokens
    array.flush()


@dataset("nanogpt", "raw", "uint16")
def nanogpt(out):
    """As nanoGPT's data/openwebtext/prepare.py writes."""
    write_memmap(out / "train.bin", np.concatenate([*documents(21, 90)]))
    write_memmap(out / "val.bin", np.concatenate([*documents(22, 12)]))
    return {"train": ["train.bin"], "val": ["val.bin"]}


@dataset("olmo", "raw", "uint32")
def olmo(out):
    """As dolma's tokens/memmap_writer.py writes: no NumPy header, and a .csv.gz of start, end, id, source, line."""
    names = [f"part-{part}-00000.npy" for part in range(2)]
    for part, name in enumerate(names):
        docs = [*documents(23 + part, 20, "u4")]
        write_memmap(out / name, np.concatenate(docs))
        rows, start = io.StringIO(newline=""), 0
        for line, doc in enumerate(docs):
            csv.writer(rows).writerow([start, start + len(doc), f"doc-{part}-{line}", f"source-{part}.json.gz", line + 1])
            start += len(doc)
        (out / name).with_suffix(".csv.gz").write_bytes(gzip.compress(rows.getvalue().encode(), mtime=0))
    return one(*names)


@dataset("datatrove", "raw", "uint16", reader="datatrove")
def datatrove(out):
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    names = [f"0000{rank}_unshuffled.ds" for rank in range(2)]
    for rank, name in enumerate(names):
        shard = TokenizedFile(str(out), name, tokenizer_name_or_path="gpt2", save_final_metadata=True, token_size=2)
        for doc in documents(25 + rank, 15):
            shard.write(doc.tolist(), None)
        shard.close()
    return one(*names)


def write_llmc(path, magic, version, tokens, *more):
    """As llm.c's dev/data/data_common.py (write_datafile) writes."""
    header = np.zeros(256, dtype=np.int32)
    header[: 3 + len(more)] = magic, version, len(tokens), *more
    path.write_bytes(header.tobytes() + tokens.tobytes())


@dataset("llmc-gpt2", "llmc", "uint16")
def llmc_gpt2(out):
    write_llmc(out / "edu_fineweb_train_000001.bin", 20240520, 1, np.concatenate([*documents(31, 30)]))
    return one("edu_fineweb_train_000001.bin")


@dataset("llmc-llama3", "llmc", "uint32", reader="llmc-u32")
def llmc_llama3(out):
    write_llmc(out / "tiny_shakespeare_val.bin", 20240801, 7, np.concatenate([*documents(32, 20, "u4")]))
    return one("tiny_shakespeare_val.bin")


@dataset("modded", "llmc", "uint16")
def modded(out):
    """Two shards to train and one to validate, as modded-nanogpt's data/cached_fineweb10B.py fetches them."""
    train = ["fineweb_train_000001.bin", "fineweb_train_000002.bin"]
    for i, name in enumerate([*train, "fineweb_val_000000.bin"]):
        write_llmc(out / name, 20240520, 1, np.concatenate([*documents(33 + i, 20)]))
    return {"train": train, "val": ["fineweb_val_000000.bin"]}


@dataset("automodel-u16", "llmc", "uint16")
def automodel_u16(out):
    """As NeMo Automodel's tools/nanogpt_data_processor.py writes: bytes per token stand in header[3]."""
    write_llmc(out / "shard_000000.bin", 278895051, 1, np.concatenate([*documents(36, 20)]), 2)
    return one("shard_000000.bin")


@dataset("automodel-u32", "llmc", "uint32", reader="llmc-u32")
def automodel_u32(out):
    write_llmc(out / "shard_000000.bin", 278895051, 1, np.concatenate([*documents(37, 20, "u4")]), 4)
    return one("shard_000000.bin")


def write_npy(path, array, version):
    with open(path, "wb") as f:
        np.lib.format.write_array(f, array, version=version)


@dataset("npy", "npy", "uint16")
def npy(out):
    names = ["tokens_00000.npy", "tokens_00001.npy"]
    for i, name in enumerate(names):
        np.save(out / name, np.concatenate([*documents(41 + i, 15)]))
    return one(*names)


@dataset("npy-v2", "npy", "int32")
def npy_v2(out):
    write_npy(out / "tokens.npy", np.concatenate([*documents(43, 10, "i4")]), (2, 0))
    return one("tokens.npy")


@dataset("npy-v3", "npy", "uint32")
def npy_v3(out):
    write_npy(out / "tokens.npy", np.concatenate([*documents(44, 10, "u4")]), (3, 0))
    return one("tokens.npy")


@dataset("npy-fortran", "npy", "uint16", view=False)
def npy_fortran(out):
    tokens = np.concatenate([*documents(45, 20)])[:256].reshape(16, 16)
    np.save(out / "batch.npy", np.asfortranarray(tokens))
    return one("batch.npy")


@dataset("npy-bigendian", "npy", ">u2", view=False)
def npy_bigendian(out):
    np.save(out / "tokens.npy", np.concatenate([*documents(46, 10)]).astype(">u2"))
    return one("tokens.npy")


# --- MosaicML Streaming and LitData ---------------------------------------------------------------------------------


def write_mds(out, columns, samples, compression=None, size_limit=2500):
    from streaming import MDSWriter

    with MDSWriter(
        out=str(out), columns=columns, compression=compression, hashes=["sha1", "xxh64"], size_limit=size_limit
    ) as writer:
        for sample in samples:
            writer.write(sample)
    index = json.loads((out / "index.json").read_text())
    return [(shard["zip_data"] or shard["raw_data"])["basename"] for shard in index["shards"]]


def blocks(seed, count, length=64, dtype="i4"):
    tokens = np.concatenate([*documents(seed, count * length // 10, dtype)])
    return [tokens[i * length : (i + 1) * length] for i in range(count)]


@dataset("mds", "mds", "int32")
def mds(out):
    return one(*write_mds(out, {"tokens": "ndarray:int32"}, [{"tokens": b} for b in blocks(51, 20)]))


@dataset("mds-shape", "mds", "uint32")
def mds_shape(out):
    """A fixed shape: a sample is its tokens and nothing else."""
    return one(*write_mds(out, {"tokens": "ndarray:uint32:64"}, [{"tokens": b} for b in blocks(52, 12, dtype="u4")]))


@dataset("mds-bytes", "mds", "int64")
def mds_bytes(out):
    """As llm-foundry wrote before it used ndarray: the bytes of int64 tokens, here of unequal length."""
    samples = [{"tokens": doc.astype("i8").tobytes()} for doc in documents(53, 20)]
    return one(*write_mds(out, {"tokens": "bytes"}, samples))


@dataset("mds-multi", "mds", "uint16")
def mds_multi(out):
    columns = {"id": "int", "tokens": "ndarray:uint16", "text": "str", "meta": "json", "weight": "float32"}
    samples = [
        {"id": i, "tokens": doc, "text": f"document {i} \N{EM DASH} é", "meta": {"i": i}, "weight": np.float32(i / 3)}
        for i, doc in enumerate(documents(54, 20))
    ]
    return one(*write_mds(out, columns, samples))


@dataset("mds-zstd", "mds", "int32", reader="mds-compressed", view=False)
def mds_zstd(out):
    samples = [{"tokens": b} for b in blocks(55, 20)]
    return one(*write_mds(out, {"tokens": "ndarray:int32"}, samples, compression="zstd:7"))


@dataset("mds-split", "mds", "int32")
def mds_split(out):
    columns, splits = {"tokens": "ndarray:int32"}, {}
    for seed, count, split in ((56, 10, "train"), (57, 4, "val")):
        names = write_mds(out / split, columns, [{"tokens": b} for b in blocks(seed, count)])
        splits[split] = [f"{split}/{name}" for name in names]
    return splits


def write_litdata(out, samples, **options):
    import litdata

    # One worker in order. It keeps its own scratch, which must not be shared with another run.
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{scratch}/cache"
        os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{scratch}/data"
        litdata.optimize(
            fn=samples.__getitem__,
            inputs=list(range(len(samples))),
            output_dir=str(out),
            num_workers=1,
            keep_data_ordered=True,
            reorder_files=False,
            verbose=False,
            **options,
        )
    index = json.loads((out / "index.json").read_text())
    index["updated_at"] = str(float(WHEN))
    (out / "index.json").write_text(json.dumps(index, sort_keys=True))
    return one(*(chunk["filename"] for chunk in index["chunks"]))


@dataset("litdata-tokens", "litdata", "int32", block_size=16)
def litdata_tokens(out):
    import torch
    from litdata import TokensLoader

    samples = [torch.from_numpy(doc) for doc in documents(61, 24, "i4")]
    return write_litdata(out, samples, chunk_size=300, item_loader=TokensLoader())


def records(count):
    return [[i, bytes(range(i)) * 3, f"class-{i % 3}"] for i in range(count)]


@dataset("litdata", "litdata")
def litdata(out):
    """Items of several leaves. A list, not a dict: LitData now writes dicts as Arrow."""
    return write_litdata(out, records(20), chunk_size=8)


@dataset("litdata-arrow", "litdata")
def litdata_arrow(out):
    """Rows: after an offset table of empty items follows one Arrow IPC file."""
    rows = [dict(zip(("id", "blob", "label"), record)) for record in records(20)]
    return write_litdata(out, rows, chunk_size=8)


@dataset("litdata-zstd", "litdata", reader="litdata-compressed")
def litdata_zstd(out):
    """Each chunk compressed as a whole. Frames inside of the chunk, LitData's default, cannot be read back: for lists
    0.2.76 names them in the index and does not write them."""
    return write_litdata(out, records(20), chunk_size=8, compression="zstd", compression_level="chunk")


# --- Arrow, tar, safetensors ----------------------------------------------------------------------------------------


def write_arrow(out, columns, features):
    import datasets

    datasets.config.DEFAULT_MAX_BATCH_SIZE = 6  # rows of a record batch: several in a shard
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(features), split="train")
    data.save_to_disk(str(out), num_shards=2)
    state = json.loads((out / "state.json").read_text())
    return one(*(file["filename"] for file in state["_data_files"]))


@dataset("arrow", "arrow", "int32")
def arrow(out):
    import datasets

    columns = {"input_ids": [doc.tolist() for doc in documents(71, 30, "i4", longest=40)]}
    return write_arrow(out, columns, {"input_ids": datasets.Sequence(datasets.Value("int32"))})


@dataset("arrow-text", "arrow")
def arrow_text(out):
    import datasets

    columns = {"text": [f"document {i}: " + "naïve café " * (i % 5) for i in range(20)]}
    return write_arrow(out, columns, {"text": datasets.Value("string")})


@dataset("webdataset", "webdataset")
def webdataset(out):
    from webdataset import ShardWriter

    rng = np.random.default_rng(81)
    with ShardWriter(str(out / "shard-%06d.tar"), maxcount=5, mtime=WHEN, verbose=0) as writer:
        for i in range(9):
            image = b"\xff\xd8\xff\xe0" + rng.bytes(100 + 37 * i) + b"\xff\xd9"
            writer.write({"__key__": f"sample{i:04d}", "jpg": image, "json": {"i": i}, "cls": i % 3})
    return one("shard-000000.tar", "shard-000001.tar")


@dataset("tar", "webdataset")
def tar(out):
    """The headers that WebDataset's own writer never needs: long names, non-ASCII names, fractions of a second."""
    names = ["short.txt", "d" * 60 + "/" + "e" * 80 + ".txt", "f" * 120 + "/" + "g" * 200 + ".txt", "dir/naïve.txt"]
    for name, format in (("gnu.tar", tarfile.GNU_FORMAT), ("pax.tar", tarfile.PAX_FORMAT)):
        with tarfile.open(out / name, "w", format=format) as archive:
            folder = tarfile.TarInfo("dir")
            folder.type, folder.mtime, folder.mode = tarfile.DIRTYPE, WHEN, 0o755
            archive.addfile(folder)
            for i, member in enumerate(names):
                info = tarfile.TarInfo(member)
                info.size, info.mtime = 100 + 400 * i, WHEN + (0.5 if format == tarfile.PAX_FORMAT else 0)
                archive.addfile(info, io.BytesIO(bytes([65 + i]) * info.size))
    return one("gnu.tar", "pax.tar")


def tensors(seed):
    import torch

    t = torch.Generator().manual_seed(seed)
    return {
        "model.layers.0.weight": torch.randn(8, 6, generator=t).to(torch.bfloat16),
        "model.layers.0.scale": torch.randn(4, generator=t).to(torch.float8_e4m3fn),
        "model/layers.1/weight": torch.randn(5, 3, generator=t),
        "half": torch.randn(3, generator=t).to(torch.float16),
        "double": torch.randn(2, 2, generator=t, dtype=torch.float64),
        "ids": torch.arange(7, dtype=torch.int64),
        "mask": torch.tensor([True, False, True]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "step": torch.tensor(1234, dtype=torch.int32),
        "empty": torch.empty(0, 4),
    }


@dataset("safetensors", "safetensors")
def safetensors(out):
    from safetensors.torch import save_file

    save_file(tensors(91), out / "model.safetensors", metadata={"format": "pt"})
    return one("model.safetensors")


@dataset("safetensors-sharded", "safetensors")
def safetensors_sharded(out):
    """As transformers and huggingface_hub save large models: two files and the index of their tensors."""
    from huggingface_hub import save_torch_state_dict

    shards = {f"layer.{i}.{name}": value for i in range(2) for name, value in tensors(92 + i).items()}
    save_torch_state_dict(shards, str(out), max_shard_size=400)
    return one(*sorted(path.name for path in out.glob("*.safetensors")))


# --- what is in them ------------------------------------------------------------------------------------------------


def expectation(golden, entry):
    """Adds to entry what the real reader finds in the golden dataset, or rather in a copy: some write beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        path = shutil.copytree(golden, Path(scratch, "dataset"))
        samples = list(real.READERS[entry["reader"]][0][1](path, entry, scratch))
    entry["shards"] = sum(len(split["files"]) for split in entry["splits"].values())
    if entry["format"] in ("mds", "litdata", "arrow", "webdataset") and "block_size" not in entry:
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
