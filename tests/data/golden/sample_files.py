"""MosaicML Streaming and LitData: shards of samples, named by an index."""

import json
import os
import tempfile

import numpy as np
from registry import WHEN, dataset, documents, one


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
