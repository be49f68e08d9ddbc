"""Writes layout/parquet/testdata with pyarrow and datasets: the encodings, compressions and page versions that writers choose.

    python tests/data/golden/parquet_files.py layout/parquet/testdata

Row i of 100 has the text "document i é..." (null where i % 10 == 3), and the tokens i, i+1, ... of i % 5 numbers. Encrypted files have new keys
each time. repeated_no_annotation and encrypt_columns_plaintext_footer are files of apache/parquet-testing (1a2a751, Apache License 2.0).
"""

import base64
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

ROWS = 100


def table() -> pa.Table:
    texts = [None if i % 10 == 3 else f"document {i} " + "é" * (i % 7) for i in range(ROWS)]
    tokens = [list(range(i, i + i % 5)) for i in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "text": pa.array(texts, pa.string()),
            "raw": pa.array([t.encode() if t else b"" for t in texts], pa.binary()),
            "image": pa.array([b"\x00\xff"] * ROWS, pa.binary()),
            "meta": pa.array([{"source": f"s{i}", "n": i} for i in range(ROWS)], pa.struct([("source", pa.string()), ("n", pa.int32())])),
            "input_ids": pa.array(tokens, pa.list_(pa.int32())),
            "wide": pa.array(tokens, pa.list_(pa.int64())),
            "words": pa.array([["a", "b"]] * ROWS, pa.list_(pa.string())),
        }
    )


class Keys(pe.KmsClient):
    """Keys that nobody keeps secret."""

    def __init__(self, _: object) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, master: str) -> bytes:
        return base64.b64encode(key + master.encode())

    def unwrap_key(self, wrapped: bytes, master: str) -> bytes:
        return base64.b64decode(wrapped)[: -len(master)]


def encrypted(t: pa.Table, out: Path) -> None:
    """Columns encrypted under a plain footer, which keeps a redacted copy of their metadata, and under an encrypted one."""
    factory, kms = pe.CryptoFactory(Keys), pe.KmsConnectionConfig()
    ids = "input_ids.list.element"
    for name, plain, columns in [("tokens", True, [ids]), ("text", True, ["text"]), ("all", True, ["text", "raw", ids]), ("footer", False, ["text"])]:
        config = pe.EncryptionConfiguration(footer_key="footer", plaintext_footer=plain, column_keys={"column": columns})
        path = out / f"encrypted-{name}.parquet"
        with pq.ParquetWriter(path, t.schema, encryption_properties=factory.file_encryption_properties(kms, config)) as w:
            w.write_table(t)
        decryption = factory.file_decryption_properties(kms, pe.DecryptionConfiguration())
        assert pq.read_table(path, decryption_properties=decryption).equals(t)


def arrays(out: Path) -> None:
    """Arrays of datasets, whose values count on from row to row, in both of its formats. The first dimension of one varies."""
    import datasets
    import numpy as np

    def rows(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
        return list(np.arange(20 * np.prod(shape)).astype(dtype).reshape(20, *shape))

    varying = [np.arange(2 * (i % 3 + 1), dtype="i4").reshape(-1, 2) for i in range(20)]
    columns = {"latent": rows((2, 3, 4), "f2"), "pixels": rows((3, 4), "u1"), "varying": varying, "id": list(range(20))}
    types = {
        "latent": datasets.Array3D((2, 3, 4), "float16"),
        "pixels": datasets.Array2D((3, 4), "uint8"),
        "varying": datasets.Array2D((None, 2), "int32"),
        "id": datasets.Value("int64"),
    }
    whole = datasets.Dataset.from_dict(columns, features=datasets.Features(types))
    whole.to_parquet(str(out / "arrays.parquet"), batch_size=7)
    table = whole.data.table
    with pa.OSFile(str(out / "arrays.arrow"), "wb") as f, pa.ipc.new_stream(f, table.schema) as w:
        w.write_table(table, max_chunksize=7)


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    t = table()
    delta = {"text": "DELTA_LENGTH_BYTE_ARRAY", "raw": "DELTA_BYTE_ARRAY", "meta.source": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED",
             "input_ids.list.element": "DELTA_BINARY_PACKED", "wide.list.element": "DELTA_BINARY_PACKED"}
    for name, options in {
        "plain": {"compression": "none", "use_dictionary": False},
        "dictionary": {"compression": "snappy"},
        "groups": {"compression": "zstd", "row_group_size": 7, "data_page_version": "2.0"},
        "gzip": {"compression": "gzip", "data_page_size": 64, "write_page_checksum": True},
        "lz4": {"compression": "lz4", "use_dictionary": False, "data_page_version": "2.0"},
        "delta": {"compression": "zstd", "use_dictionary": False, "column_encoding": delta},
        "brotli": {"compression": "brotli"},
    }.items():
        pq.write_table(t, out / f"{name}.parquet", **options)
    pq.write_table(t.slice(0, 0), out / "empty.parquet")
    encrypted(t.select(["text", "raw", "input_ids"]), out)
    holes = pa.array([[1, None, 3]] * 9, pa.list_(pa.int32()))
    pq.write_table(pa.table({"holes": holes}), out / "holes.parquet")
    pq.write_table(pa.table({"holes": holes, "more": holes}), out / "two.parquet")
    split = pa.array([list(range(i, i + 1000)) for i in range(3)], pa.list_(pa.int64()))
    pq.write_table(pa.table({"split": split, "text": ["a", "b", "c"]}), out / "split.parquet", compression="none", use_dictionary=False,
                   column_encoding={"split.list.element": "BYTE_STREAM_SPLIT"}, data_page_size=500, write_batch_size=64)
    struct = pa.array([{"ids": [i, i + 1]} for i in range(9)], pa.struct([("ids", pa.large_list(pa.uint32()))]))
    pq.write_table(pa.table({"tokens": struct, "lists": pa.array([[[1]]] * 9, pa.list_(pa.list_(pa.int32())))}), out / "struct.parquet")
    arrays(out)
    text = t.select(["id", "text", "input_ids"])
    with pa.OSFile(str(out / "stream.arrow"), "wb") as f, pa.ipc.new_stream(f, text.schema) as w:
        w.write_table(text, max_chunksize=9)
    with pa.OSFile(str(out / "file.arrow"), "wb") as f, pa.ipc.new_file(f, text.schema) as w:
        w.write_table(text, max_chunksize=30)
    with pa.OSFile(str(out / "compressed.arrow"), "wb") as f, pa.ipc.new_stream(f, text.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as w:
        w.write_table(text)


if __name__ == "__main__":
    main()
