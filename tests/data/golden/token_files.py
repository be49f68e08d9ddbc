"""Token files with small headers or none: nanoGPT, OLMo, datatrove, llm.c and its relatives, NumPy."""

import csv
import gzip
import io
import pickle
import struct

import numpy as np
import projects
import torch
from registry import dataset, documents, one


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


@dataset("automodel-u32", "llmc", "uint32", reader="automodel-u32")
def automodel_u32(out):
    write_llmc(out / "shard_000000.bin", 278895051, 1, np.concatenate([*documents(37, 20, "u4")]), 4)
    return one("shard_000000.bin")


@dataset("fairseq", "fairseq", "uint16")
def fairseq(out):
    writer = projects.fairseq().MMapIndexedDatasetBuilder
    for i, split in enumerate(("train", "valid")):
        builder = writer(str(out / f"{split}.bin"), dtype=np.uint16)
        for doc in documents(38 + i, 20):
            builder.add_item(torch.from_numpy(doc.astype(np.int64)))
        builder.finalize(str(out / f"{split}.idx"))
    return {"train": ["train.bin"], "valid": ["valid.bin"]}


@dataset("pbin", "pbin", "uint16")
def pbin(out):
    """As Modalities' dataloader/create_packed_data.py (PackedDataGenerator) writes."""
    docs = [*documents(40, 30)]
    ends = np.cumsum([2 * len(doc) for doc in docs]).tolist()
    index = [(end - 2 * len(doc), 2 * len(doc)) for end, doc in zip(ends, docs)]
    header = ends[-1].to_bytes(8, "little") + (2).to_bytes(4, "little")
    (out / "data.pbin").write_bytes(header + np.concatenate(docs).tobytes() + pickle.dumps(index))
    return one("data.pbin")


@dataset("packed", "packed", "int32")
def packed(out):
    """As TinyLlama's lit_gpt/packed_dataset.py (PackedDatasetBuilder) writes: chunks of whole blocks, the last one filled up with a separator."""
    tokens, chunk = np.concatenate([*documents(47, 60, "i4")]), 32 * 16
    names = [f"train_{i:010d}.bin" for i in range(-(-len(tokens) // chunk))]
    for i, name in enumerate(names):
        part = np.full(chunk, 2, np.int32)
        part[: len(tokens[i * chunk :][:chunk])] = tokens[i * chunk :][:chunk]
        (out / name).write_bytes(b"LITPKDS" + struct.pack("<QBQ", 1, 4, chunk) + part.tobytes())
    return one(*names)


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
