"""The real readers of every format, each as one function from a path to samples that can be compared.

READERS maps a format of expect.json to (name, function) pairs; a function takes the dataset's directory, its entry in
expect.json and a scratch directory that it may write to, and yields the samples. Where a project has no importable
reader (nanoGPT, llm.c, modded-nanogpt, OLMo, GPT-NeoX), the function does what its source does, and says which.

streams() reads the tokens of each split as one array, with the borders of its documents: what a view must show.
"""

import contextlib
import csv
import fcntl
import gzip
import logging
import os
import shutil
import struct
import tarfile
import warnings
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")
logging.getLogger("megatron").setLevel(logging.ERROR)

import numpy as np  # noqa: E402
import projects  # noqa: E402


def preload():
    """Imports the packages, which takes seconds, so that processes forked afterwards need not."""
    import datasets  # noqa: F401
    import datatrove.utils.dataset  # noqa: F401
    import litdata  # noqa: F401
    import megatron.core.datasets.indexed_dataset  # noqa: F401
    import safetensors.torch  # noqa: F401
    import streaming  # noqa: F401
    import webdataset  # noqa: F401


def plain(value):
    """Returns value in a form that == compares exactly, element type and shape included."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if type(value).__module__ == "torch":
        import torch

        return (str(value.dtype), tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if isinstance(value, (np.ndarray, np.generic)):
        return (str(value.dtype), value.shape, value.tobytes())
    return value


def shard_paths(path, entry):
    """Paths of the shards, split after split."""
    return [Path(path, name) for split in entry["splits"].values() for name in split["files"]]


# --- Megatron -------------------------------------------------------------------------------------------------------


def indexed_dataset(prefix, entry, mmap=True):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    return IndexedDataset(str(prefix), multimodal=entry.get("multimodal", False), mmap=mmap)


def megatron(mmap):
    def read(path, entry, scratch):
        for shard in shard_paths(path, entry):
            dataset = indexed_dataset(shard.with_suffix(""), entry, mmap)
            yield dataset.document_indices
            for i in range(len(dataset)):
                yield dataset[i]

    return read


def megatron_memmap(path, entry, scratch):
    """As GPT-NeoX's megatron/data/indexed_dataset.py reads, whose codes 6 and 7 are float32 and float64."""
    for shard in shard_paths(path, entry):
        lengths, pointers, documents = neox_index(shard.with_suffix(".idx"))
        data = np.memmap(shard, dtype=entry["dtype"], mode="r")
        yield documents
        for length, pointer in zip(lengths, pointers):
            yield data[pointer // data.itemsize :][:length]


def neox_index(path):
    index = np.memmap(path, mode="r")
    magic, version, _, sequences, documents = struct.unpack_from("<9sQBQQ", index)
    assert magic == b"MMIDIDX\0\0" and version == 1
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    return lengths, pointers, np.frombuffer(index, "<i8", documents, 34 + 12 * sequences)


def megatron_pieces(path, entry, scratch):
    """As GPT-NeoX's tools/unshard_memmap.py joins the pieces, then Megatron's reader."""
    (split,) = entry["splits"].values()
    joined = Path(scratch, "document")
    with open(joined.with_suffix(".bin"), "wb") as out:
        for name in split["files"]:
            out.write(Path(path, name).read_bytes())
    shutil.copyfile(Path(path, "document.idx"), joined.with_suffix(".idx"))
    dataset = indexed_dataset(joined, entry)
    yield dataset.document_indices
    for i in range(len(dataset)):
        yield dataset[i]


# --- token files ----------------------------------------------------------------------------------------------------


def raw_memmap(path, entry, scratch):
    """As nanoGPT's train.py and OLMo's memory-mapped datasets do."""
    for shard in shard_paths(path, entry):
        yield np.memmap(shard, dtype=entry["dtype"], mode="r")


def raw_windows(path, entry, scratch):
    """As OLMo-core's get_bytes_range does: open, seek, read and close for each instance."""
    itemsize = np.dtype(entry["dtype"]).itemsize
    for shard in shard_paths(path, entry):
        for start in range(0, shard.stat().st_size, 37 * itemsize):
            with open(shard, "rb") as f:
                f.seek(start)
                yield np.frombuffer(f.read(37 * itemsize), dtype=entry["dtype"])


def datatrove(path, entry, scratch):
    from datatrove.utils.dataset import DatatroveFileDataset

    for shard in shard_paths(path, entry):
        dataset = DatatroveFileDataset(
            str(shard), seq_len=15, token_size=np.dtype(entry["dtype"]).itemsize, return_positions=True
        )
        for i in range(len(dataset)):
            yield dataset[i]


def llmc(path, entry, scratch):
    """As llm.c's train_gpt2.py (_load_data_shard) does."""
    for shard in shard_paths(path, entry):
        with open(shard, "rb") as f:
            header = np.frombuffer(f.read(256 * 4), dtype=np.int32)
            tokens = np.frombuffer(f.read(), dtype=entry["dtype"])
        assert len(tokens) == header[2]
        yield header
        yield tokens


def modded(path, entry, scratch):
    """As modded-nanogpt's _load_data_shard does: the header by torch.from_file, all tokens by one readinto."""
    import torch

    for shard in shard_paths(path, entry):
        header = torch.from_file(str(shard), False, 256, dtype=torch.int32)
        tokens = torch.empty(int(header[2]), dtype=torch.uint16)
        with open(shard, "rb", buffering=0) as f:
            f.seek(256 * 4)
            assert f.readinto(tokens.numpy()) == 2 * len(tokens)
        yield header
        yield tokens


def automodel(path, entry, scratch):
    """NeMo Automodel's shards and samples of them. Its reader makes samples of i64."""
    reader = projects.automodel()
    for shard in shard_paths(path, entry):
        yield reader.load_bin_shard(shard).numpy()
        for sample in reader.NanogptDataset([shard], seq_len=37)._process_file_tokens(str(shard), False, 0, None):
            yield sample


def fairseq(path, entry, scratch):
    reader = projects.fairseq()
    for shard in shard_paths(path, entry):
        dataset = reader.make_dataset(str(shard.with_suffix("")), "mmap")
        yield dataset.sizes.copy()
        for i in range(len(dataset)):
            yield dataset[i].numpy().astype(entry["dtype"])


def pbin(path, entry, scratch):
    """Modalities' documents, and its blocks over the borders of documents."""
    reader = projects.modalities()
    for shard in shard_paths(path, entry):
        for documents in (
            reader.PackedMemMapDatasetBase(shard, sample_key="x"),
            reader.PackedMemMapDatasetContinuous(shard, sample_key="x", block_size=33, reuse_last_target=True),
        ):
            yield len(documents)
            for i in range(len(documents)):
                yield documents[i]["x"].astype(entry["dtype"])


def packed(path, entry, scratch):
    """As TinyLlama's lit_gpt/packed_dataset.py (PackedDatasetIterator) does: a header, then blocks out of a memory map."""
    for shard in shard_paths(path, entry):
        with open(shard, "rb") as f:
            assert f.read(7) == b"LITPKDS"
            assert struct.unpack("<Q", f.read(8)) == (1,)
            (code,) = struct.unpack("<B", f.read(1))
            (chunk,) = struct.unpack("<Q", f.read(8))
        assert {4: "int32", 8: "uint16"}[code] == entry["dtype"]
        buffer = memoryview(np.memmap(shard, mode="r", order="C", offset=24))
        for block in range(chunk // 32):
            yield np.frombuffer(buffer, dtype=entry["dtype"], count=32, offset=block * 32 * np.dtype(entry["dtype"]).itemsize)


def npy(mode):
    def read(path, entry, scratch):
        for shard in shard_paths(path, entry):
            yield np.load(shard, mmap_mode=mode)

    return read


# --- MosaicML Streaming and LitData ---------------------------------------------------------------------------------


def mds_local(path, entry, scratch):
    from streaming import LocalDataset

    for split in entry["splits"]:
        dataset = LocalDataset(str(path), split=split or None)
        for i in range(len(dataset)):
            yield dataset[i]


@contextlib.contextmanager
def alone():
    """No other test has a StreamingDataset meanwhile: MosaicML Streaming has the same names in /dev/shm in each process."""
    fd = os.open("/dev/shm", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def mds_streaming(in_place):
    """in_place reads the shards where they lie; otherwise they are fetched, and decompressed, into the scratch."""

    def read(path, entry, scratch):
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        for split in entry["splits"]:
            where = {"local": str(path)} if in_place else {"remote": str(path), "local": str(Path(scratch, "mds"))}
            hashes = {} if in_place else {"validate_hash": "sha1"}
            with alone():
                clean_stale_shared_memory()
                dataset = StreamingDataset(**where, **hashes, split=split or None, shuffle=False, batch_size=1)
                samples = [dataset[i] for i in range(len(dataset))]
                del dataset
            yield from samples

    return read


def litdata(path, entry, scratch):
    from litdata import StreamingDataset, TokensLoader

    loader = TokensLoader(block_size=entry["block_size"]) if "block_size" in entry else None
    cache = str(Path(scratch, "litdata"))
    dataset = StreamingDataset(str(path), cache_dir=cache, item_loader=loader, shuffle=False, max_cache_size="1GB")
    for i in range(len(dataset)):
        yield dataset[i]


def litdata_copied(path, entry, scratch):
    """LitData decompresses a local chunk beside it, and then deletes the chunk: it only ever gets a copy."""
    yield from litdata(shutil.copytree(path, Path(scratch, "copy")), entry, scratch)


# --- Arrow, tar, safetensors ----------------------------------------------------------------------------------------


def arrow(in_memory):
    def read(path, entry, scratch):
        import datasets

        yield from datasets.load_from_disk(str(path), keep_in_memory=in_memory)

    return read


def parquet(path, entry, scratch):
    import pyarrow.parquet

    for shard in shard_paths(path, entry):
        yield from pyarrow.parquet.read_table(shard, memory_map=True).to_pylist()


def parquet_loaded(path, entry, scratch):
    import datasets

    for shard in shard_paths(path, entry):
        cache = Path(scratch, shard.name)
        yield from datasets.load_dataset("parquet", data_files=str(shard), split="train", cache_dir=str(cache))


def webdataset(path, entry, scratch):
    import webdataset as wds

    shards = [str(shard) for shard in shard_paths(path, entry)]
    for sample in wds.WebDataset(shards, shardshuffle=False, empty_check=False):
        yield {key: value for key, value in sample.items() if key not in ("__url__", "__local_path__")}


def tar(path, entry, scratch):
    for shard in shard_paths(path, entry):
        with tarfile.open(shard) as archive:
            for member in archive:
                data = archive.extractfile(member).read() if member.isfile() else None
                yield [member.name, member.size, member.mtime, member.offset_data, data]


def safetensors_mapped(path, entry, scratch):
    from safetensors import safe_open

    for shard in shard_paths(path, entry):
        with safe_open(shard, framework="pt") as f:
            yield f.metadata()
            for name in sorted(f.keys()):
                yield {name: f.get_tensor(name)}


def safetensors_loaded(path, entry, scratch):
    from safetensors.torch import load_file

    for shard in shard_paths(path, entry):
        yield load_file(shard)


MEMMAP = ("numpy.memmap", raw_memmap)
MDS = [
    ("streaming.LocalDataset", mds_local),
    ("streaming.StreamingDataset in place", mds_streaming(True)),
    ("streaming.StreamingDataset fetched", mds_streaming(False)),
]
WEBDATASET = [("webdataset.WebDataset", webdataset), ("tarfile", tar)]
READERS = {
    "megatron": [
        ("megatron.IndexedDataset mmap", megatron(True)),
        ("megatron.IndexedDataset file", megatron(False)),
    ],
    "megatron-neox": [("numpy.memmap", megatron_memmap)],
    "megatron-pieces": [("megatron.IndexedDataset joined", megatron_pieces)],
    "raw": [MEMMAP, ("open-seek-read", raw_windows)],
    "datatrove": [MEMMAP, ("datatrove.DatatroveFileDataset", datatrove)],
    "llmc": [("llm.c loader", llmc), ("modded-nanogpt loader", modded), ("nemo_automodel.NanogptDataset", automodel)],
    "llmc-u32": [("llm.c loader", llmc)],
    "automodel-u32": [("llm.c loader", llmc), ("nemo_automodel.NanogptDataset", automodel)],
    "fairseq": [("fairseq.MMapIndexedDataset", fairseq)],
    "pbin": [("modalities.PackedMemMapDataset", pbin)],
    "packed": [("TinyLlama's PackedDataset", packed)],
    "mds": MDS,
    "mds-compressed": MDS[2:],
    "litdata": [("litdata.StreamingDataset", litdata)],
    "litdata-compressed": [("litdata.StreamingDataset copied", litdata_copied)],
    "npy": [("numpy.load mmap", npy("r")), ("numpy.load", npy(None))],
    "arrow": [("datasets.load_from_disk", arrow(False)), ("datasets.load_from_disk in memory", arrow(True))],
    "parquet": [("pyarrow.parquet", parquet), ("datasets.load_dataset", parquet_loaded)],
    "webdataset": WEBDATASET,
    "safetensors": [("safetensors.safe_open", safetensors_mapped), ("safetensors.load_file", safetensors_loaded)],
}


# --- the token stream of each split -----------------------------------------------------------------------------------


def streams(path, entry, scratch):
    """Yields (split, tokens, document starts or None) as an independent reading of the dataset gives them."""
    for split, listed in entry["splits"].items():
        one = dict(entry, splits={split: listed})
        parts = list(parts_of(path, one, scratch))
        assert {tokens.dtype for tokens, _ in parts} == {np.dtype(entry["dtype"])}, [tokens.dtype for tokens, _ in parts]
        tokens = np.concatenate([tokens for tokens, _ in parts], dtype=entry["dtype"])  # else it drops the byte order
        if any(starts is None for _, starts in parts):
            yield split, tokens, None
            continue
        firsts = np.cumsum([0] + [len(tokens) for tokens, _ in parts])
        starts = [start + first for first, (_, starts) in zip(firsts, parts) for start in starts[:-1]]
        yield split, tokens, [int(start) for start in starts] + [len(tokens)]


def parts_of(path, entry, scratch):
    """Yields (tokens, document starts with the end) for each shard or sample."""
    kind = entry["reader"]
    if kind in ("megatron", "megatron-neox", "megatron-pieces"):
        read = READERS[kind][0][1](path, entry, scratch)
        for shard in [None] if kind == "megatron-pieces" else shard_paths(path, entry):
            documents = next(read)
            sequences = [next(read) for _ in range(documents[-1])]
            if entry.get("multimodal"):  # then a sample is (tokens, mode)
                sequences = [tokens for tokens, _ in sequences]
            ends = np.cumsum([0] + [len(sequence) for sequence in sequences])
            yield np.concatenate(sequences), ends[documents]
    elif kind == "raw" or kind == "datatrove":
        for shard in shard_paths(path, entry):
            yield np.memmap(shard, dtype=entry["dtype"], mode="r"), sidecar_starts(shard)
    elif kind in ("llmc", "llmc-u32", "automodel-u32"):
        for header, tokens in pairs(llmc(path, entry, scratch)):
            yield tokens, None
    elif kind == "fairseq":
        read = fairseq(path, entry, scratch)
        for sizes in read:
            yield np.concatenate([next(read) for _ in sizes]), np.cumsum([0, *sizes])
    elif kind == "pbin":
        reader = projects.modalities()
        for shard in shard_paths(path, entry):
            data = reader.EmbeddedStreamData(shard).data
            yield np.frombuffer(data, entry["dtype"]), None
    elif kind == "packed":
        yield np.concatenate([*packed(path, entry, scratch)]), None
    elif kind == "npy":
        for shard in shard_paths(path, entry):
            yield np.load(shard).ravel(), None
    elif kind.startswith("mds"):
        for sample in READERS[kind][0][1](path, entry, scratch):
            tokens = sample["tokens"]
            tokens = np.frombuffer(tokens, entry["dtype"]) if isinstance(tokens, bytes) else tokens.ravel()
            yield tokens, [0, len(tokens)]
    elif kind == "arrow":
        for sample in arrow(False)(path, entry, scratch):
            yield np.array(sample["input_ids"], entry["dtype"]), [0, len(sample["input_ids"])]
    elif kind == "parquet":
        for sample in parquet(path, entry, scratch):
            tokens = np.array(sample["input_ids"] or [], entry["dtype"])
            yield tokens, [0, len(tokens)]
    elif kind == "litdata":
        blocks = litdata(path, dict(entry, block_size=1), scratch)  # of one token, so that no tail is lost
        for shard in shard_paths(path, entry):  # the reader knows no items; the writer says where they lie
            items = np.fromfile(shard, "<u4", 1)[0]
            ends = np.fromfile(shard, "<u4", items + 1, offset=4).astype(np.int64)
            starts = (ends - ends[0]) // np.dtype(entry["dtype"]).itemsize
            yield np.concatenate([next(blocks).numpy() for _ in range(starts[-1])]), starts


def pairs(items):
    return zip(items, items) if hasattr(items, "__next__") else zip(iter(items), iter(items))


def sidecar_starts(shard):
    """Document starts out of OLMo's .csv.gz or datatrove's .index, None where there is neither."""
    listed, index = shard.with_suffix(".csv.gz"), Path(f"{shard}.index")
    if listed.exists():
        with gzip.open(listed, "rt") as f:
            rows = [(int(row[0]), int(row[1])) for row in csv.reader(f)]
        return [start for start, _ in rows] + [rows[-1][1]]
    if index.exists():
        return [0] + np.fromfile(index, "<u8").astype(np.int64).tolist()
    return None
