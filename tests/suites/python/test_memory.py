"""Arrays in HBM without torch: who owns the memory, in whatever order things are deleted."""

import ctypes
import gc

import hbmfs
import numpy as np
import pytest
from hbmfs._lib.device_array import _DLManagedTensor

get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


def take(capsule):
    """Takes a tensor out of a capsule, as a consumer of DLPack does. Call its deleter once."""
    managed = _DLManagedTensor.from_address(get_pointer(capsule, b"dltensor"))
    assert set_name(capsule, b"used_dltensor") == 0
    return managed


def held(gpu):
    gc.collect()
    return gpu.ask("hbm")


def test_an_array_outlives_dataset_and_reader(gpu, tokens):
    path, data = tokens
    with gpu.reader() as reader:
        with hbmfs.open(path, reader=reader) as ds:
            x = ds.gather([7, 9], 100)
        assert (x.shape, x.dtype, x.nbytes, len(x), x.ndim, x.device) == ((2, 100), np.uint16, 400, 2, 2, 0)
    assert np.array_equal(x.to_numpy(), np.stack([data[7:107], data[9:109]]))
    assert held(gpu) > 0
    del x
    assert held(gpu) == 0


def test_cuda_array_interface(gpu, tokens):
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        x = ds.read(3, 50)
        assert x.__cuda_array_interface__ == {
            "version": 3, "shape": (50,), "typestr": "<u2", "data": (x.pointer, False), "strides": None, "stream": None,
        }  # fmt: skip
        assert ds.read(5, 50, out=x) is x
        assert np.array_equal(x.to_numpy(), tokens[1][5:55])
        del x


@pytest.mark.parametrize("first", ["array", "consumer"])
def test_dlpack_keeps_the_memory(gpu, tokens, first):
    path, data = tokens
    with gpu.reader() as reader, hbmfs.open(path, reader=reader) as ds:
        x = ds.gather([1, 2, 3], 20)
    assert x.__dlpack_device__() == (2, 0)
    managed = take(x.__dlpack__(stream=1, max_version=(1, 0)))
    tensor = managed.tensor
    assert (tensor.data, tensor.device_type, tensor.device_id, tensor.ndim, tensor.byte_offset) == (x.pointer, 2, 0, 2, 0)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.shape[0], tensor.shape[1], bool(tensor.strides)) == (1, 16, 1, 3, 20, False)
    if first == "array":
        del x
        assert held(gpu) > 0
        # Device memory is host memory here, so that it can be looked at.
        assert ctypes.string_at(tensor.data, 40) == data[1:21].tobytes()
        managed.deleter(ctypes.addressof(managed))
    else:
        managed.deleter(ctypes.addressof(managed))
        assert held(gpu) > 0
        assert np.array_equal(x.to_numpy()[0], data[1:21])
        del x
    assert held(gpu) == 0


def test_a_capsule_that_nobody_takes(gpu, tokens):
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        x = ds.read(0, 5)
    capsule = x.__dlpack__()
    del x
    assert held(gpu) > 0
    del capsule
    assert held(gpu) == 0


def test_dlpack_makes_no_copies(gpu, tokens):
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        x = ds.read(0, 5)
    with pytest.raises(BufferError, match="without a copy"):
        x.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(1, 0))
    del x


def test_a_request_that_is_forgotten(gpu, tokens):
    """Its memory goes when nothing writes to it any more."""
    with gpu.reader() as reader, hbmfs.open(tokens[0], reader=reader) as ds:
        before = held(gpu)
        for start in range(20):
            ds.begin_gather([start], 200_000)
        assert held(gpu) == before
        assert reader.stats()["requests"] == 0
        assert ds.gather([0], 5).shape == (1, 5)


def test_bytes_into_memory_of_the_caller(opened, tokens, shared_gpu):
    path, _ = tokens
    want = path.read_bytes()
    with hbmfs.Reader("cpu") as reader, reader.open_file(path) as file:
        room = bytearray(file.size)
        pointer = ctypes.addressof((ctypes.c_char * len(room)).from_buffer(room))
        requests = [file.read_into(pointer + at, at, min(99_999, file.size - at)) for at in range(0, file.size, 99_999)]
        assert sum(request.wait() for request in requests) == file.size == len(want)
        assert room == want
        assert file.stats()["bytes"] == {"host": len(want)}
        with pytest.raises(hbmfs.OutOfRangeError):
            file.read_into(pointer, 1, file.size).wait()


def test_many_files_at_once(shared_gpu, mount, tmp_path):
    names = [mount / "npy/tokens_00000.npy", mount / "npy/tokens_00001.npy", mount / "nanogpt/train.bin"]
    for reader in (shared_gpu, hbmfs.Reader("cpu")):
        files = reader.open_many(names)
        assert [file.size for file in files] == [name.stat().st_size for name in names]
        for file in files:
            file.close()
        before = reader.stats()["files"]
        with pytest.raises(hbmfs.NotFoundError):
            reader.open_many([*names, tmp_path / "none"])
        assert reader.stats()["files"] == before
        assert reader.open_many([]) == []
