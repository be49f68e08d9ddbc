"""Faults under a running stream over many shards, with little: stream_faults.py does it with much."""

import os

import hbmfs
import pytest
from stream_faults import Faults, run

SHARDS, ROWS, LENGTH = 60, 16, 255


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_wrong_byte_under_faults(device, tmp_path, request):
    with Faults(os.environ["HBMFS_BINARY"], tmp_path, SHARDS) as faults:
        reader = request.getfixturevalue("gpu").reader(reuse=True, pinned=8 << 20) if device == "cuda" else hbmfs.Reader("cpu")
        with reader:
            run(faults, reader, ROWS, LENGTH, 1, say=print)
