"""Damaged safetensors files and indexes: each is refused with a sentence, and what is accepted is what the package accepts."""

import json
import os
import struct

import hbmfs
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch


@pytest.fixture(scope="module")
def load():
    with hbmfs.Reader("cpu") as reader:
        yield lambda path, **options: hbmfs.load_safetensors(path, "cpu", reader=reader, **options)


def written(folder, header, data=b"", name="bad.safetensors"):
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path = folder / name
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": list(offsets), **more}


def theirs(path):
    """What the package reads, or None if it refuses."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (safetensors.SafetensorError, RuntimeError, TypeError, ValueError, OSError, AttributeError):
        return None


BOTH_REFUSE = [
    ("shape and bytes", {"a": entry(shape=(2,))}, 4, "expected 8 bytes"),
    ("a hole at the front", {"a": entry(offsets=(4, 8))}, 8, "leaves 4 bytes unused"),
    ("a hole between", {"a": entry(), "b": entry(offsets=(8, 12))}, 12, "leaves 4 bytes unused"),
    ("a hole at the end", {"a": entry()}, 5, "end at"),
    ("an overlap", {"a": entry(shape=(2,), offsets=(0, 8)), "b": entry(offsets=(4, 8))}, 8, '"b" overlaps'),
    ("out of range", {"a": entry(), "b": entry(shape=(100,), offsets=(4, 404))}, 8, '"b" ends at'),
    ("ends before it begins", {"a": entry(shape=(0,), offsets=(4, 0))}, 4, "data_offsets"),
    ("negative", {"a": entry(offsets=(-4, 0))}, 0, "data_offsets"),
    ("three offsets", {"a": entry(offsets=(0, 4, 4))}, 4, "data_offsets"),
    ("no offsets", {"a": {"dtype": "F32", "shape": [1]}}, 4, "data_offsets"),
    ("offsets beyond 64 bits", {"a": entry(offsets=(0, 1 << 64))}, 4, "data_offsets"),
    ("unknown dtype", {"a": entry("F99")}, 4, '"F99"'),
    ("dtype as a number", {"a": entry(7)}, 4, "dtype 7"),
    ("shape that is no list", {"a": entry(shape=1)}, 4, "expected a list"),
    ("shape of text", {"a": entry(shape=("1",))}, 4, "expected a list"),
    ("shape of fractions", {"a": entry(shape=(1.0,))}, 4, "expected a list"),
    ("shape of truth", {"a": entry(shape=(True,))}, 4, "expected a list"),
    ("negative shape", {"a": entry(shape=(-1, -1))}, 4, "expected a list"),
    ("minus zero", '{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', 0, "expected a list"),
    ("a product beyond 64 bits", {"a": entry(shape=(1 << 32, 1 << 32), offsets=(0, 0))}, 0, "more than any file"),
    ("a product of 64 bits, times 4", {"a": entry(shape=(1 << 62,), offsets=(0, 1 << 60))}, 0, "more than any file"),
    ("a product beyond 64 bits, times 0", {"a": entry(shape=(1 << 62, 4, 0), offsets=(0, 0))}, 0, "more than any file"),
    ("a size beyond 64 bits", {"a": entry(shape=(1 << 64, 0), offsets=(0, 0))}, 0, "expected a list"),
    ("a huge shape", {"a": entry("U8", (1 << 60,), (0, 1 << 60))}, 4, '"a" ends at'),
    ("a part of a byte", {"a": entry("F4", (3,), (0, 1))}, 1, "expected 1.5 bytes"),
    ("metadata that is no object", {"__metadata__": 3}, 0, "__metadata__"),
    ("metadata of numbers", {"__metadata__": {"a": 3}}, 0, "__metadata__"),
    ("metadata is not nothing", {"__metadata__": False}, 0, "__metadata__"),
    ("a tensor that is text", {"a": "F32"}, 0, "must be an object"),
    ("a tensor that is null", {"a": None}, 0, "must be an object"),
    ("a list", [], 0, "must be a JSON object"),
    ("nothing", b"", 0, "not JSON"),
    ("zeros", b"\0" * 16, 0, "not JSON"),
    ("not UTF-8", b'{"\xff":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', 0, "not UTF-8"),
    ("half a surrogate pair", b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', 0, "not UTF-8"),
    ("NaN", b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":NaN}}', 0, "NaN"),
    ("an endless number", b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":1e999}}', 0, "out of range"),
    ("a tail", b"{}\0", 0, "not JSON"),
    ("a cut header", b'{"a":{"dtype":"F32","sha', 0, "not JSON"),
    ("deep nesting", b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":' + b"[" * 126 + b"]" * 126 + b"}}", 0, "nested"),
    ("very deep nesting", b'{"a":' + b"[" * 100_000, 0, "not JSON"),
]


@pytest.mark.parametrize(("header", "size", "says"), [case[1:] for case in BOTH_REFUSE], ids=[case[0] for case in BOTH_REFUSE])
def test_refused_as_there(tmp_path, load, header, size, says):
    path = written(tmp_path, header, bytes(size))
    assert theirs(path) is None
    with pytest.raises(hbmfs.FormatError) as caught:
        load(path)
    message = str(caught.value)
    assert says in message and str(path) in message and "\n" not in message


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0,2],"data_offsets":[0,0]}}',
        b'{"__metadata__":{"x":"1","x":"2"}}',
        b'{"a":["F32",[0],[0,0]]}',
    ],
    ids=["tensors", "metadata", "a list"],
)
def test_refused_though_not_there(tmp_path, load, header):
    """Readers differ in which of two equal names they take, and no writer makes the other form."""
    path = written(tmp_path, header)
    assert theirs(path) is not None
    with pytest.raises(hbmfs.FormatError):
        load(path)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({}, 0),
        (b"{}      ", 0),
        (b'  {"__metadata__":null}', 0),
        ({"__metadata__": {"format": "pt"}, "a": entry()}, 4),
        ({"a": entry(more={"x": [1.5, -3, None, 10**30]})}, 4),
        ({"b": entry(offsets=(4, 8)), "a": entry()}, 8),
        ({"\0\n\u00fc\U0001f600": entry()}, 4),
        ({"a": entry("U8", (1,), (0, 1)), "b": entry(offsets=(1, 5))}, 5),
        ({"a": entry(shape=(1 << 62, 0), offsets=(0, 0))}, 0),
        ({"a": entry("I64", (0, 1 << 50), (0, 0)), "b": entry("I64", (), (0, 8))}, 8),
        (b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0],"x":' + b"[" * 125 + b"]" * 125 + b"}}", 0),
    ],
    ids=range(11),
)
def test_odd_but_right(tmp_path, load, header, size):
    path = written(tmp_path, header, bytes(range(size)))
    expected, found = theirs(path), load(path)
    assert expected is not None and found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


def test_dtypes_that_torch_has_not(tmp_path, load):
    path = written(tmp_path, {"a": entry("F6_E2M3", (4,), (0, 3)), "b": entry("F4", (2, 3), (3, 6)), "c": entry("U8", (1,), (6, 7))}, bytes(7))
    with pytest.raises(hbmfs.DtypeError, match="'a' is of F6_E2M3"):
        load(path, names=["a"])
    with pytest.raises(hbmfs.DtypeError, match="'b' of F4"):
        load(path, names=["b"])
    assert list(load(path, names=["c"])) == ["c"]


def test_shapes_that_torch_cannot_have(tmp_path, load):
    path = written(tmp_path, {"a": entry(shape=(0, 1 << 63, 1 << 63), offsets=(0, 0))})
    assert theirs(path) is None
    with pytest.raises(hbmfs.FormatError, match='"a" has the shape'):
        load(path)


@pytest.mark.parametrize("length", [100_000_001, 1 << 63, (1 << 64) - 1, 1000])
def test_lengths_that_lie(tmp_path, load, length):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + bytes(100))
    with pytest.raises(hbmfs.FormatError, match="header of"):
        load(path)


def test_every_truncation(tmp_path, load):
    path = tmp_path / "whole.safetensors"
    safetensors.torch.save_file({"a": torch.arange(5), "b": torch.ones(3)}, path)
    whole = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(hbmfs.FormatError):
            load(cut)
    cut.write_bytes(whole + b"\0")
    with pytest.raises(hbmfs.FormatError):
        load(cut)


def mutated(random, whole):
    """One damage: bytes flipped in the header, values of its JSON changed, or the file cut or grown."""
    length = struct.unpack("<Q", whole[:8])[0]
    header, data = bytearray(whole[8 : 8 + length]), whole[8 + length :]
    kind = random.integers(4)
    if kind == 0:
        for _ in range(random.integers(1, 4)):
            header[random.integers(len(header))] = random.integers(256)
    elif kind == 1:
        for _ in range(random.integers(1, 3)):
            header[random.integers(len(header))] = random.choice(list(b'0123456789[]{},:"-.eFUI \\ud'))
    elif kind == 2:
        parsed = json.loads(header)
        target = parsed[random.choice([name for name in parsed if name != "__metadata__"])]
        key = random.choice(["dtype", "shape", "data_offsets", "more"])
        values = [None, [], [0], [1, 2], [0, 4], [2**63], -1, 1.5, "F32", "BF16", "I64", {"x": 1}, True, list(reversed(target["shape"])), [0, 2**64]]
        target[key] = values[random.integers(len(values))]
        header = bytearray(json.dumps(parsed).encode())
    else:
        size = int(random.integers(-8, 9))
        data = data[:size] if size < 0 else data + bytes(size)
    return struct.pack("<Q", len(header)) + bytes(header) + data


def test_agrees_with_the_package_on_damaged_files(tmp_path, load):
    random = np.random.default_rng(11)
    path = tmp_path / "whole.safetensors"
    model = {"a": torch.arange(6).view(2, 3), "b.weight": torch.randn(5), "c": torch.zeros(0, 3), "d": torch.ones(()), "e": torch.ones(3, dtype=torch.bfloat16)}
    safetensors.torch.save_file(model, path, {"format": "pt"})
    whole = path.read_bytes()
    accepted = 0
    for round in range(1500):
        bad = tmp_path / f"{round}.safetensors"
        bad.write_bytes(mutated(random, whole))
        expected = theirs(bad)
        try:
            found = load(bad)
        except (hbmfs.FormatError, hbmfs.DtypeError) as err:
            assert expected is None or "there twice" in str(err), (round, str(err))
            continue
        assert expected is not None and found.keys() == expected.keys(), round
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, (round, name)
            assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), (round, name)
        accepted += 1
        bad.unlink()
    assert accepted > 50, "too few to say anything"


def model_with_index(folder, index):
    safetensors.torch.save_file({"a": torch.ones(3)}, folder / "one.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_bytes(index if isinstance(index, bytes) else json.dumps(index).encode())
    return path


@pytest.mark.parametrize(
    "name", ["../one.safetensors", "/etc/passwd", "x/../../one.safetensors", "", ".", "..", "one.safetensors\0", 3, None, ["one.safetensors"]]
)
def test_an_index_that_leaves_its_directory(tmp_path, load, name):
    (tmp_path / "model").mkdir()
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "one.safetensors")
    path = model_with_index(tmp_path / "model", {"weight_map": {"a": name}})
    for given in (path, path.parent):
        with pytest.raises(hbmfs.FormatError, match="same directory"):
            load(given)


@pytest.mark.parametrize(
    "index", [b"", b"\xff", b"[]", b"3", b"{}", b'{"weight_map":[]}', b'{"weight_map":null}', b'{"weight_map":"a"}', b"[" * 100_000], ids=range(9)
)
def test_an_index_that_is_none(tmp_path, load, index):
    with pytest.raises(hbmfs.FormatError, match="weight_map"):
        load(model_with_index(tmp_path, index))


def test_an_index_that_lies(tmp_path, load):
    with pytest.raises(hbmfs.FormatError, match="a name twice"):
        load(model_with_index(tmp_path, b'{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}'))
    with pytest.raises(hbmfs.FormatError, match="no tensor 'b'"):
        load(model_with_index(tmp_path, {"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(hbmfs.NotFoundError, match=r"two\.safetensors, though the index of its model says that 'a' is in it"):
        load(model_with_index(tmp_path, {"weight_map": {"a": "two.safetensors"}}))


def test_paths_that_are_no_model(tmp_path, load):
    for path in (tmp_path, tmp_path / "none.safetensors", tmp_path / "none.json"):
        with pytest.raises(hbmfs.NotFoundError):
            load(path)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "x.safetensors")
    with pytest.raises(hbmfs.FormatError, match="regular file"):
        load(tmp_path / "pipe")
    for name in ("one", "two"):
        safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(hbmfs.FormatError, match="'a' is in"):
        load(tmp_path)
    for name in ("model", "other"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(hbmfs.FormatError, match="2 indexes"):
        load(tmp_path)


def test_devices_that_are_not_there(tmp_path, load):
    path = written(tmp_path, {"a": entry()}, bytes(4))
    for device in ("cuda:999999", "cuda:77", -1, "tpu"):
        with pytest.raises(hbmfs.DeviceError):
            hbmfs.load_safetensors(path, device)
    with hbmfs.Reader("cpu") as reader, pytest.raises(hbmfs.DeviceError, match="the reader is for cpu"):
        hbmfs.load_safetensors(path, "cuda:0", reader=reader)
    assert torch.equal(load(path)["a"], torch.zeros(1))


def test_more_than_there_is_memory_for(load):
    """A sparse file as large as all addresses of a process. Nothing of it is read."""
    size = 1 << 47
    header = json.dumps({"a": entry("U8", (size,), (0, size))}).encode()
    fd = os.memfd_create("large.safetensors")
    try:
        os.write(fd, struct.pack("<Q", len(header)) + header)
        os.truncate(fd, 8 + len(header) + size)
        with pytest.raises(hbmfs.OutOfMemoryError, match=str(size)):
            load(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
