"""Writes layout/testdata: weights by llama.cpp's own writer (package gguf), and records by array_record's.

    python tests/data/golden/gguf_files.py layout/testdata
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from array_record.python import array_record_module


def main() -> None:
    out = Path(sys.argv[1])
    w = gguf.GGUFWriter(str(out / "gguf" / "model.gguf"), "llama")
    w.add_block_count(2)
    w.add_token_list([f"token {i}" for i in range(300)])
    w.add_array("floats", [0.5, 1.5])
    w.add_custom_alignment(64)
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    w.add_tensor("blk.0/a", values)
    w.add_tensor("blk.0.half", values.astype(np.float16))
    quantized = gguf.quants.quantize(np.arange(128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("blk.1.q", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    r = array_record_module.ArrayRecordWriter(str(out / "records" / "data.array_record"), "group_size:1")
    for i in range(3):
        r.write(b"record %d" % i)
    r.close()
    records = out / "records" / "data.array_record"
    records.write_bytes(records.read_bytes()[:4096])  # the rest is padding, and nobody reads it


if __name__ == "__main__":
    main()
