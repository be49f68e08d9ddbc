"""Samples of Parquet files as pyarrow and datasets, which wrote them, read them."""

import io
import json
import os
import subprocess

import hbmfs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 120
OPTIONS = {
    "plain": {"compression": "none", "use_dictionary": False},
    "plain-pages": {"compression": "none", "use_dictionary": False, "data_page_size": 4096, "write_batch_size": 7, "row_group_size": 90},
    "plain-v2": {"compression": "none", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 4096, "write_batch_size": 7},
    "dictionary": {"compression": "none"},
    "snappy": {"compression": "snappy", "row_group_size": 50},
    "snappy-v2": {"compression": "snappy", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 2000, "write_batch_size": 5},
    "zstd": {"compression": "zstd", "write_page_checksum": True, "write_statistics": False},
    "zstd-v2": {"compression": "zstd", "data_page_version": "2.0", "row_group_size": 7},
    "delta": {"compression": "gzip", "use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "image.bytes": "DELTA_LENGTH_BYTE_ARRAY"}},
    "split": {"compression": "lz4", "use_dictionary": False, "column_encoding": {"scale": "BYTE_STREAM_SPLIT", "hash": "BYTE_STREAM_SPLIT"}},
}


@pytest.fixture
def mounted(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "mount").mkdir()

    def mount():
        subprocess.run([os.environ["HBMFS_BINARY"], "mount", tmp_path / "data", tmp_path / "mount"], check=True, stdout=subprocess.DEVNULL)
        return tmp_path / "mount"

    yield tmp_path / "data", mount
    subprocess.run([os.environ["HBMFS_BINARY"], "umount", "--lazy", tmp_path / "mount"], check=False, stdout=subprocess.DEVNULL)


def table(seed, rows=ROWS):
    """Values of many lengths, empty ones and nulls at every level. One value is large."""
    r = np.random.default_rng(seed)

    def some(make, nulls=0.1):
        return [None if r.random() < nulls else make() for _ in range(rows)]

    def image():
        return r.bytes([0, 10, 5000, int(r.integers(1, 9000))][r.integers(4)])

    images = some(lambda: {"bytes": None if r.random() < 0.1 else image(), "path": "p" * int(r.integers(4))})
    if rows:
        images[rows // 2] = {"bytes": r.bytes(3 << 20), "path": None}
    return pa.table(
        {
            "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            "raw": pa.array(some(image, 0), pa.large_binary()),
            "text": pa.array(some(lambda: "héllo " * int(r.integers(4))), pa.string()),
            "word": pa.array(some(lambda: ["a", "bb", ""][r.integers(3)]), pa.string()),
            "label": pa.array(r.integers(0, 9, rows), pa.int64()),
            "small": pa.array(r.integers(0, 99, rows), pa.uint8()),
            "maybe": pa.array(some(lambda: int(r.integers(9))), pa.int32()),
            "scale": pa.array(r.random(rows), pa.float32()),
            "hash": pa.array([r.bytes(16) for _ in range(rows)], pa.binary(16)),
            "holey": pa.array(some(lambda: r.bytes(3)), pa.binary(3)),
            "ids": pa.array(some(lambda: r.integers(0, 9, r.integers(6)).tolist()), pa.list_(pa.int32())),
            "latent": pa.array([r.random(12).astype(np.float16) for _ in range(rows)], pa.list_(pa.float16(), 12)),
            "square": pa.array([[[i, 1], [2, 3]] for i in range(rows)], pa.list_(pa.list_(pa.int32(), 2), 2)),
            "boxes": pa.array(some(lambda: [r.bytes(4) for _ in range(r.integers(3))]), pa.list_(pa.binary(4))),
            "points": pa.array(some(lambda: [{"x": 1.5, "n": int(k)} for k in r.integers(0, 9, r.integers(3))]), pa.list_(pa.struct([("x", pa.float64()), ("n", pa.int16())]))),
        }
    )


def flat(value, name=()):
    """The fields of a row as (name, bytes), with the types of the table above."""
    types = {"maybe": "i4", "label": "i8", "small": "u1", "scale": "f4", "ids": "i4", "latent": "f2", "square": "i4", "points.x": "f8", "points.n": "i2"}
    key = ".".join(name)
    if key == "points":
        for part in ("x", "n"):
            yield f"points.{part}", np.array([point[part] for point in value or []], types[f"points.{part}"]).tobytes()
    elif isinstance(value, dict) or key == "image":
        for part in value or ("bytes", "path"):
            yield from flat(value and value[part], (*name, part))
    elif key == "boxes":
        yield key, b"".join(value or [])
    elif value is None:
        yield key, b""
    elif isinstance(value, (str, bytes)):
        yield key, value.encode() if isinstance(value, str) else value
    else:
        yield key, np.asarray(value, types[key]).tobytes()


def wanted(files):
    return [dict(part for name, value in row.items() for part in flat(value, (name,))) for path in files for row in pq.read_table(path).to_pylist()]


def check(ds, want):
    assert len(ds) == len(want)
    for i, sample in enumerate(ds):
        assert {name: value.tobytes() for name, value in sample.items()} == want[i], i


@pytest.mark.parametrize("name", OPTIONS)
def test_values_of_pyarrow(mounted, name):
    data, mount = mounted
    for seed, rows in enumerate([ROWS, 0, 41]):
        pq.write_table(table(seed, rows), data / f"part-{seed}.parquet", **OPTIONS[name])
    want = wanted(sorted(data.iterdir()))
    there = mount()
    about = json.loads((there / ".hbmfs/views/fields/fields.json").read_text())["fields"]
    assert {field["name"] for field in about if field["kind"] == "dense"} == {"label", "small", "scale", "hash", "latent", "square"}
    with hbmfs.SampleDataset(there, tensors=False) as ds:
        check(ds, want)
        at = 0
        for batch in hbmfs.SampleStream(ds, 17, ["image.bytes", "label"], shuffle=False, epochs=1, drop_last=False):
            for image, label in zip(batch["image.bytes"].rows(), batch["label"], strict=True):
                assert image.tobytes() == want[at]["image.bytes"] and label.tobytes() == want[at]["label"]
                at += 1
        assert at == len(want)


def test_images_of_datasets(mounted):
    import datasets
    from PIL import Image

    data, mount = mounted

    def png(number):
        Image.fromarray(np.full((8 + number % 3, 9, 3), number % 256, np.uint8)).save(file := io.BytesIO(), "PNG")
        return file.getvalue()

    (data / "data").mkdir()
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    images = [{"bytes": png(i), "path": None} for i in range(ROWS)]
    whole = datasets.Dataset.from_dict({"image": images, "label": [i % 2 for i in range(ROWS)]}, features=features)
    for split in ("train", "test"):
        for i in range(2):
            whole.shard(2, i).to_parquet(data / "data" / f"{split}-{i:05d}-of-00002.parquet", batch_size=40)
    there = mount()
    for split in ("train", "test"):
        with hbmfs.SampleDataset(there / ".hbmfs/views/data" / split, tensors=False) as ds:
            assert [sample["image.bytes"].tobytes() for sample in ds] == [image["bytes"] for image in images]
            assert [int(sample["label"]) for sample in ds] == [i % 2 for i in range(ROWS)]


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_arrays_of_datasets(mounted, kind):
    import datasets

    data, mount = mounted
    r = np.random.default_rng(3)
    shapes = {"latent": ((4, 3, 5), "float16"), "image": ((7, 6, 3), "uint8"), "table": ((2, 9), "float64"), "deep": ((2, 1, 2, 3), "int32")}
    features = {name: getattr(datasets, f"Array{len(shape)}D")(shape, dtype) for name, (shape, dtype) in shapes.items()}
    columns = {name: list(r.integers(0, 99, (ROWS, *shape)).astype(dtype)) for name, (shape, dtype) in shapes.items()}
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    if kind == "arrow":
        whole.save_to_disk(data / "saved", num_shards=2)
        read = datasets.load_from_disk(data / "saved")
    else:
        whole.to_parquet(data / "train.parquet", batch_size=50)
        read = datasets.load_dataset("parquet", data_files=[str(data / "train.parquet")], split="train", cache_dir=data.parent / "cache")
    want = list(read.with_format("numpy"))
    with hbmfs.SampleDataset(mount() / ("saved" if kind == "arrow" else "."), tensors=False) as ds:
        assert {name: (tuple(field["shape"]), field["dtype"]) for name, field in ds.fields.items()} == shapes
        assert len(ds) == ROWS
        for sample, other in zip(ds, want, strict=True):
            for name, (_, dtype) in shapes.items():
                assert sample[name].dtype == dtype and np.array_equal(sample[name], other[name])
