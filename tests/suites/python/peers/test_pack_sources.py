"""hbmfs pack reads what datasets, pandas and Polars write: the same tokens as from JSON Lines."""

import json
import os
import subprocess

import pytest

HBMFS = os.environ.get("HBMFS_BINARY") or "hbmfs"
TEXTS = [f"document {i} " + "wörter 数字 " * (i % 50) for i in range(5000)]


def pack(source, out, *flags):
    subprocess.run([HBMFS, "pack", *flags, str(source), str(out)], check=True, stdout=subprocess.DEVNULL)
    return {p.name: p.read_bytes() for p in out.iterdir()}


@pytest.fixture
def expect(tmp_path):
    lines = tmp_path / "expect.jsonl"
    lines.write_text("".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    return pack(lines, tmp_path / "expect")


def test_peer_datasets_on_disk(tmp_path, expect):
    datasets = pytest.importorskip("datasets")
    d = datasets.Dataset.from_dict({"id": list(range(len(TEXTS))), "text": TEXTS})
    d.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert pack(tmp_path / "saved", tmp_path / "out") == expect
    datasets.DatasetDict({"train": d}).save_to_disk(str(tmp_path / "dict"))
    assert pack(tmp_path / "dict", tmp_path / "out2") == expect


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"compression": "zstd", "row_group_size": 100}, {"compression": None}])
def test_peer_parquet_of_pandas(tmp_path, expect, options):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"meta": range(len(TEXTS)), "body": TEXTS}).to_parquet(tmp_path / "a.parquet", **options)
    assert pack(tmp_path / "a.parquet", tmp_path / "out", "--column", "body") == expect


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "uncompressed"])
def test_peer_parquet_of_polars(tmp_path, expect, compression):
    polars = pytest.importorskip("polars")
    polars.DataFrame({"text": TEXTS}).write_parquet(tmp_path / "a.parquet", compression=compression)
    assert pack(tmp_path / "a.parquet", tmp_path / "out") == expect


def test_peer_token_lists(tmp_path):
    pandas = pytest.importorskip("pandas")
    tokens = [list(range(i % 7)) for i in range(2000)]
    pandas.DataFrame({"input_ids": tokens}).to_parquet(tmp_path / "a.parquet")
    files = pack(tmp_path / "a.parquet", tmp_path / "out", "--dtype", "u16")
    import numpy as np

    assert np.frombuffer(files["data_text_document.bin"], np.uint16).tolist() == [t for row in tokens for t in row]
