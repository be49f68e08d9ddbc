"""Writes the Arrow files of this folder with pyarrow, small ones of each shape that the reader tells apart:

    pip install pyarrow==22.0.0 && python make.py

Where there are tokens, they are the documents [1, 2, 3], [], [4, 5] and [6], two to a record batch.
"""

import pathlib

import pyarrow as pa

HERE = pathlib.Path(__file__).parent
DOCS = [[1, 2, 3], [], [4, 5], [6]]


def write(name, table, batch=2, file=False, compression=None, legacy=False):
    options = pa.ipc.IpcWriteOptions(compression=compression, metadata_version=pa.ipc.MetadataVersion.V4 if legacy else pa.ipc.MetadataVersion.V5)
    new = pa.ipc.new_file if file else pa.ipc.new_stream
    with new(str(HERE / name), table.schema, options=options) as out:
        out.write_table(table, max_chunksize=batch)


def lists(kind, docs=DOCS, name="input_ids", **more):
    return pa.table({**more, name: pa.array(docs, type=kind)})


write("stream-u16.arrow", lists(pa.list_(pa.uint16())))
write("large-i64.arrow", lists(pa.large_list(pa.int64())))
write("fixed-i32.arrow", lists(pa.list_(pa.int32(), 3), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]))
write("file-i32.arrow", lists(pa.list_(pa.int32())), file=True)
write("v4-i32.arrow", lists(pa.list_(pa.int32())), legacy=True)
write("sliced-i32.arrow", lists(pa.list_(pa.int32()), [[9, 9]] + DOCS).slice(1))
write("compressed.arrow", lists(pa.list_(pa.int32())), compression="zstd")
write("nulls.arrow", lists(pa.list_(pa.int32()), [[1, None], None]))
write("dictionary.arrow", pa.table({"input_ids": pa.array(DOCS, pa.list_(pa.int32())), "word": pa.array(["a", "b", "a", "b"]).dictionary_encode()}))
write("empty.arrow", lists(pa.list_(pa.int32()), []))
write("two-lists.arrow", pa.table({"a": pa.array(DOCS, pa.list_(pa.int32())), "b": pa.array(DOCS, pa.list_(pa.int32()))}))
write(  # columns of many kinds lie before the tokens
    "behind.arrow",
    lists(
        pa.list_(pa.int32()),
        null=pa.nulls(4),
        text=["a", "bb", None, "dddd"],
        flag=[True, False, None, True],
        point=pa.array([{"x": 1, "y": [1.5]}] * 4),
        pairs=pa.array([[("k", 1)]] * 4, pa.map_(pa.string(), pa.int8())),
        word=pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        square=pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        raw=pa.array([b"ab"] * 4, pa.binary(2)),
        large=pa.array(["x"] * 4, pa.large_string()),
    ),
)
write("union.arrow", lists(pa.list_(pa.int32()), u=pa.UnionArray.from_sparse(pa.array([0, 0, 0, 0], pa.int8()), [pa.array([1, 2, 3, 4])])))
