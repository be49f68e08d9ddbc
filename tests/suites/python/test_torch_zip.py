"""The frames of tensors, against what torch.save writes."""

import io
import os
import zipfile

import pytest
import torch
from hbmfs.checkpoints import torch_save
from hbmfs.checkpoints._dcp_layout import ALIGNMENT, LARGE, dense, lay
from hbmfs.checkpoints._torch_zip import frame
from test_dcp import DTYPES, random_tensor, raw

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

SHAPES = [(), (0, 5), (1,), (3, 7), (300, 50), (2, 3, 1, 40)]


def elements(tensor):
    """The bytes of a dense tensor, in the order of memory."""
    return bytes(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()) if tensor.numel() else b""


def framed(tensor):
    around = frame(tensor.dtype, tuple(tensor.size()), tensor.stride())
    return around.head + elements(tensor) + around.tail


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_torch_loads_and_what_it_pickles(dtype):
    g = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        whole = random_tensor(g, *shape, dtype=dtype)
        for tensor in (whole, whole.t() if whole.dim() == 2 else whole, whole.transpose(0, 1) if whole.dim() == 4 else whole):
            archive, theirs = framed(tensor), io.BytesIO()
            torch.save(tensor, theirs)
            assert zipfile.ZipFile(io.BytesIO(archive)).read("archive/data.pkl") == zipfile.ZipFile(theirs).read("archive/data.pkl")
            for options in ({"weights_only": True}, {"weights_only": False}):
                found = torch.load(io.BytesIO(archive), **options)
                assert (found.dtype, found.shape, found.stride()) == (dtype, tensor.shape, tensor.stride())
                assert torch.equal(raw(found), raw(tensor))


def test_listing_and_sums():
    """Pythons' zipfile lists it and reads all of it but the elements, whose CRC is not there."""
    with zipfile.ZipFile(io.BytesIO(framed(torch.ones(30)))) as archive:
        assert archive.namelist() == ["archive/data.pkl", "archive/byteorder", "archive/version", "archive/data/0"]
        assert archive.read("archive/byteorder") == b"little" and archive.read("archive/version") == b"3\n"
        with pytest.raises(zipfile.BadZipFile, match="CRC"):
            archive.read("archive/data/0")


def test_more_than_4_gib(tmp_path):
    """Sizes of 64 bits, in a file of holes."""
    count = (5 << 30) + 3
    around = frame(torch.uint8, (count,), (1,))
    with open(tmp_path / "large", "wb") as file:
        file.write(around.head)
        os.pwrite(file.fileno(), b"\x07", len(around.head) + count - 1)
        file.seek(len(around.head) + count)
        file.write(around.tail)
    found = torch.load(tmp_path / "large", mmap=True, weights_only=True)
    assert found.shape == (count,) and found[-1] == 7 and found[-2] == 0
    with open(tmp_path / "large", "rb") as file:
        stored = torch_save.find_tensor(torch_save.Slice(file.fileno(), 0, os.fstat(file.fileno()).st_size))
    assert stored.offset == len(around.head) and stored.length == count


def test_layout():
    g = torch.Generator().manual_seed(2)
    large, small = random_tensor(g, 300, 70), random_tensor(g, 9)
    entries = [large, b"bytes", small, torch.empty(0, 3), b"", random_tensor(g, LARGE, dtype=torch.uint8), large.t()]
    file, places = lay("name", entries)
    assert file.name == "name" and file.size == max(sum(place) for place in places)
    taken = sorted((place.offset, place.offset + place.length) for place in places)
    assert all(end <= begin for (_, end), (begin, _) in zip(taken, taken[1:], strict=False)), "entries overlap"
    content, end = bytearray(file.size), 0
    for offset, data in file.parts:
        assert offset >= end, "parts are in order, and disjoint"
        data = data if isinstance(data, bytes) else elements(data)
        content[offset : offset + len(data)] = data
        end = offset + len(data)
    for entry, (offset, length) in zip(entries, places, strict=True):
        found = bytes(content[offset : offset + length])
        if isinstance(entry, bytes):
            assert found == entry
            continue
        at = offset + found.index(elements(entry)) if entry.numel() else offset
        assert at % (ALIGNMENT if entry.nbytes >= LARGE else 64) == 0 or not entry.numel()
        assert torch.equal(raw(torch.load(io.BytesIO(found), weights_only=True)), raw(entry))


def test_dense(monkeypatch):
    monkeypatch.setattr("hbmfs.checkpoints._dcp_layout.PIECE", 1000)
    g = torch.Generator().manual_seed(3)
    whole = random_tensor(g, 60, 80)
    for tensor in (
        whole,
        whole.t(),
        whole[10:20],
        whole[3],
        torch.nn.Parameter(whole),
        whole[:, :1][:1],
        whole[:0],
        random_tensor(g, 4, 5, 6).permute(2, 0, 1),
    ):
        assert dense(tensor).data_ptr() == tensor.data_ptr(), "no copy"
    gaps = [whole[:, 3:50], whole[::2], whole[:1].expand(900, 80), whole[5, ::3], torch.tensor(1.5).expand(7), whole[:, :50].t()]
    for tensor in [*gaps, torch.conj(torch.randn(400, dtype=torch.complex64)), torch.randn(40, dtype=torch.complex64).conj().imag]:
        with torch.device("meta"):  # copies are on the host wherever torch's default is
            made = dense(tensor)
        assert made.is_contiguous() and not made.is_conj() and not made.is_neg() and torch.equal(raw(made), raw(tensor.resolve_neg()))
    sparse = torch.eye(5).to_sparse()
    assert torch.equal(torch.load(io.BytesIO(dense(sparse)), weights_only=True).to_dense(), torch.eye(5))
