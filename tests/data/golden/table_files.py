"""Arrow, Parquet, WebDataset and plain tar, safetensors."""

import io
import json
import tarfile

import numpy as np
from registry import WHEN, dataset, documents, one


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


@dataset("parquet", "parquet", "int32")
def parquet(out):
    """As datasets writes what is pushed to a hub: dictionaries, Snappy, a shard in several row groups."""
    import datasets

    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32")), "text": datasets.Value("string")})
    splits = {"train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "validation": ["validation-00000-of-00001.parquet"]}
    for split, names in splits.items():
        for name in names:
            ids = [doc.tolist() for doc in documents(72 + len(name) + int(name[-18]), 30, "i4", longest=40)]
            columns = {"input_ids": ids, "text": [f"document {i}" for i in range(len(ids))]}
            datasets.Dataset.from_dict(columns, features=features).to_parquet(str(out / name), batch_size=11)
    return splits


@dataset("parquet-plain", "parquet", "uint16")
def parquet_plain(out):
    """Rows that are empty and null, types that Parquet widens, pages of both versions, of which some are plain."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [doc.tolist() for doc in documents(75, 60, "u2", longest=40)]
    rows[3], rows[59] = [], None
    for i, options in enumerate(
        [
            {"compression": "none", "use_dictionary": False},
            {"compression": "zstd", "data_page_version": "2.0", "row_group_size": 7, "write_page_checksum": True},
            {"compression": "gzip", "use_dictionary": False, "column_encoding": {"input_ids.list.element": "DELTA_BINARY_PACKED"}, "data_page_size": 100},
        ]
    ):
        pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.uint16()))}), out / f"part-{i}.parquet", **options)
    return one("part-0.parquet", "part-1.parquet", "part-2.parquet")


@dataset("parquet-images", "parquet")
def parquet_images(out):
    """Images as datasets writes them, compressed, and the same columns as pyarrow writes them plain: empty values, nulls, a long image."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    r = np.random.default_rng(76)
    images = [{"bytes": r.bytes([1500, 0, 9000, 40][i % 4]), "path": f"{i}.jpg" if i % 3 else None} for i in range(17)]
    columns = {"image": images, "label": list(range(17)), "latent": r.random((17, 6)).astype("f2").tolist(), "score": [None if i == 5 else i / 2 for i in range(17)]}
    types = {"image": datasets.Image(decode=False), "label": datasets.Value("int64"), "latent": datasets.List(datasets.Value("float16"), 6), "score": datasets.Value("float32")}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(types))
    whole.to_parquet(str(out / "train-00000-of-00003.parquet"), batch_size=7)
    table = pa.concat_tables([whole.data.table.slice(0, 9), whole.data.table.slice(3, 1)])
    pq.write_table(table, out / "train-00001-of-00003.parquet", compression="none", use_dictionary=False, write_batch_size=4, data_page_size=6000)
    columns["image"][4] = None
    last = pa.Table.from_pydict(columns, schema=table.schema)
    pq.write_table(last, out / "train-00002-of-00003.parquet", compression="zstd", data_page_version="2.0", row_group_size=5, write_page_checksum=True)
    return one(*(f"train-{i:05d}-of-00003.parquet" for i in range(3)))


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
