"""save_safetensors, read by the safetensors package and by load_safetensors, and files of torch.save."""

import io
import os
import sys

import hbmfs
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from hbmfs._lib import _native
from hbmfs.checkpoints import _publishing, safetensors_save
from hbmfs.checkpoints._torch_object import lay_out
from hbmfs.weights import safetensors_header
from test_weights import DTYPES, random_model, random_tensor, same

PAGE = 4096


def by_name(tensors):
    return dict(sorted(tensors.items()))


def test_every_dtype(tmp_path):
    model = random_model(1)
    written = hbmfs.save_safetensors(model, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    assert [file.name for file in written.files] == ["model.safetensors"] and written.files[0].size == path.stat().st_size
    same(by_name(safetensors.torch.load_file(path)), by_name(model))
    same(by_name(hbmfs.load_safetensors(tmp_path / "model", "cpu")), by_name(model))
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_packed_halves_of_bytes(tmp_path):
    data = torch.randint(0, 256, (6, 4), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    hbmfs.save_safetensors({"x": data}, tmp_path / "model")
    same(safetensors.torch.load_file(tmp_path / "model" / "model.safetensors"), {"x": data})


def test_where_bytes_lie(tmp_path):
    """Tensors of whole pages begin at pages, and all others at their element's size."""
    shapes = {"odd": (3,), "pages": (2, 1024), "more": (5000,), "page": (1024,), "byte": (4097,), "none": (0, 3), "half": (512,)}
    model = {name: torch.randint(0, 100, shape).to(torch.uint8 if name == "byte" else torch.float32) for name, shape in shapes.items()}
    hbmfs.save_safetensors(model, tmp_path / "model")
    header = safetensors_header.read(tmp_path / "model" / "model.safetensors")
    at = {tensor.name: tensor.offset for tensor in header.tensors}
    assert min(at.values()) % PAGE == 0 and min(at.values()) >= PAGE
    for name, tensor in model.items():
        assert at[name] % (PAGE if tensor.nbytes and tensor.nbytes % PAGE == 0 else tensor.itemsize) == 0, (name, at[name])


def test_tied_tensors_are_written_once(tmp_path):
    shared = torch.randn(50, 8)
    model = {"embed": shared, "head": shared, "part": shared.clone()[3:9], "other": torch.ones(3)}
    hbmfs.save_safetensors(model, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    same(by_name(safetensors.torch.load_file(path)), by_name({name: model[name] for name in ("embed", "part", "other")}))
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "head": "embed"}


def test_one_memory_that_is_read_in_several_ways_is_not_tied(tmp_path):
    z, n = torch.randn(4, 3, dtype=torch.complex64), np.arange(6).reshape(2, 3).T
    model = {"z": z.T, "conj": z.T.conj(), "neg": torch._neg_view(z.T), "again": z.T.conj(), "n": n, "swapped": n.view(">i8")}
    hbmfs.save_safetensors(model, tmp_path / "model")
    del model["again"]
    expected = {name: torch.from_numpy(v.astype("i8")) if isinstance(v, np.ndarray) else v.resolve_conj().resolve_neg() for name, v in model.items()}
    same(by_name(hbmfs.load_safetensors(tmp_path / "model", "cpu")), by_name({name: v.contiguous() for name, v in expected.items()}))


def test_views_of_one_allocation(tmp_path):
    """What load_safetensors gives can be saved again; tensors that overlap are refused."""
    safetensors.torch.save_file(random_model(2), tmp_path / "a.safetensors")
    loaded = hbmfs.load_safetensors(tmp_path / "a.safetensors", "cpu")
    hbmfs.save_safetensors(loaded, tmp_path / "b")
    same(by_name(hbmfs.load_safetensors(tmp_path / "b", "cpu")), by_name(loaded))
    whole = torch.arange(100)
    with pytest.raises(hbmfs.InvalidError, match="'a' and 'b' share a part of their memory"):
        hbmfs.save_safetensors({"a": whole[:60], "b": whole[50:]}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_copies_are_on_the_host_wherever_torchs_default_is(tmp_path):
    model = {"gaps": torch.randn(3, 4).T, "conj": torch.randn(5, dtype=torch.complex64).conj()}
    with torch.device("meta"):
        hbmfs.save_safetensors(model, tmp_path / "model")
    same(by_name(hbmfs.load_safetensors(tmp_path / "model", "cpu")), by_name({name: v.resolve_conj().contiguous() for name, v in model.items()}))


def test_not_contiguous(tmp_path, monkeypatch):
    """They are copied, those of one file at a time."""
    copies, most = [], 0
    real = safetensors_save._Item.data

    def data(item):
        nonlocal most
        found = real(item)
        if item.form is not None:
            import weakref

            copies[:] = [copy for copy in copies if copy() is not None]
            copies.append(weakref.ref(found))
            most = max(most, sum(copy().nbytes for copy in copies if copy() is not None))
        return found

    monkeypatch.setattr(safetensors_save._Item, "data", data)
    model = {f"{i}": torch.randn(30, 40).t() for i in range(10)} | {"plain": torch.ones(7)}
    model |= {"conj": torch.randn(5, dtype=torch.complex64).conj(), "numpy": np.arange(60.0).reshape(6, 10)[:, ::2], "big": np.arange(9, dtype=">i4")}
    hbmfs.save_safetensors(model, tmp_path / "model", shard_size=10_000)
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == 5
    assert 4800 <= most <= 10_000
    expected = {name: torch.from_numpy(v.astype(v.dtype.newbyteorder("="))) if isinstance(v, np.ndarray) else v for name, v in model.items()}
    same(by_name(hbmfs.load_safetensors(tmp_path / "model", "cpu")), by_name({name: v.resolve_conj().contiguous() for name, v in expected.items()}))


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        ({"x": torch.zeros(2, dtype=torch.complex128)}, hbmfs.DtypeError, "'x' is of torch.complex128"),
        ({"x": np.zeros(2, "c16")}, hbmfs.DtypeError, "'x' is of complex128"),
        ({"x": np.zeros(2, "M8[s]")}, hbmfs.DtypeError, "safetensors does not have"),
        ({"x": torch.eye(2).to_sparse()}, hbmfs.DtypeError, "sparse"),
        ({"x": torch.zeros(2, device="meta")}, hbmfs.DeviceError, "meta"),
        ({"x": [1, 2]}, hbmfs.InvalidError, "'x': .1, 2.*must be a mapping of a str to a Tensor"),
        ({3: torch.zeros(2)}, hbmfs.InvalidError, "{3: .*must be a mapping of a str"),
        ({"__metadata__": torch.zeros(2)}, hbmfs.InvalidError, "__metadata__"),
    ],
)
def test_what_the_format_has_not(tmp_path, tensors, error, text):
    with pytest.raises(error, match=text):
        hbmfs.save_safetensors(tensors, tmp_path / "model")
    assert os.listdir(tmp_path) == []


def test_bad_arguments(tmp_path):
    x = {"x": torch.zeros(2)}
    for options in ({"shard_size": 0}, {"metadata": {"a": 1}}, *({"extra": {name: b""}} for name in ("a/b", ".hidden", "..", "", "model.safetensors"))):
        with pytest.raises(hbmfs.InvalidError):
            hbmfs.save_safetensors(x, tmp_path / "model", **options)
    assert os.listdir(tmp_path) == []


def test_a_directory_in_the_way(tmp_path):
    for name in ("full", "file"):
        path = tmp_path / name
        path.write_text("mine") if name == "file" else path.mkdir()
        if name == "full":
            (path / "note").write_text("mine")
        with pytest.raises(FileExistsError):
            hbmfs.save_safetensors({"x": torch.zeros(2)}, path)
    assert (tmp_path / "file").read_text() == "mine" and (tmp_path / "full" / "note").read_text() == "mine"
    (tmp_path / "model").mkdir()  # an empty one is in nobody's way
    hbmfs.save_safetensors({"x": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(FileExistsError, match="model"):
        hbmfs.save_safetensors({"x": torch.ones(2)}, tmp_path / "model")
    assert torch.equal(hbmfs.load_safetensors(tmp_path / "model", "cpu")["x"], torch.zeros(2))


def test_progress_and_interrupts(tmp_path):
    seen = []
    model = {"a": torch.zeros(100_000), "b": torch.zeros(100, 70).t()}
    hbmfs.save_safetensors(model, tmp_path / "model", shard_size=300_000, progress=lambda done, total: seen.append((done, total)))
    size = sum(file.stat().st_size for file in (tmp_path / "model").iterdir() if not file.name.startswith("."))
    assert seen == sorted(seen) and seen[-1] == (size, size)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hbmfs.save_safetensors(model, tmp_path / "other", progress=stop)
    assert os.listdir(tmp_path) == ["model"]


def written(obj):
    """The file of an object, in memory."""
    size, parts = lay_out(obj)
    data, end = bytearray(size), 0
    for at, part in parts:
        part = part.numpy().tobytes() if isinstance(part, torch.Tensor) else part
        assert at >= end
        data[at : at + len(part)], end = part, at + len(part)
    return bytes(data)


@pytest.mark.parametrize("weights_only", [True, False])
def test_files_of_torch_save(weights_only):
    """Stock torch.load gives what it gives of torch.save's own: bits, strides, shared storages."""
    torch.manual_seed(1)
    base, model = torch.randn(100, 100), torch.nn.Linear(40, 50)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(40)).sum().backward()
    optimizer.step()
    obj = {
        "shared": [base, base[3:5], base.t()],
        "dtypes": {str(dtype): random_tensor(torch.Generator().manual_seed(2), (7, 1031), dtype) for dtype in DTYPES},
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "others": [torch.nn.Parameter(torch.ones(3)), torch.zeros(0, 4), torch.tensor(3.0), torch.eye(3).to_sparse(), 1, "text", None],
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
    }
    data, theirs = written(obj), io.BytesIO()
    torch.save(obj, theirs)
    found = torch.load(io.BytesIO(data), weights_only=weights_only)
    expected = torch.load(io.BytesIO(theirs.getvalue()), weights_only=weights_only)
    alike(found, expected)
    found["shared"][0][3, 0] = 7
    assert found["shared"][1][0, 0] == found["shared"][2][0, 3] == 7


def alike(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            alike(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif isinstance(expected, torch.Tensor) and expected.layout == torch.strided:
        assert (found.dtype, found.shape, found.stride(), found.is_conj()) == (expected.dtype, expected.shape, expected.stride(), expected.is_conj())
        bits = [tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for tensor in (found, expected)]
        assert torch.equal(*bits)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found.to_dense(), expected.to_dense())
    else:
        assert found == expected


def test_storages_of_a_file_lie_at_pages():
    size, parts = lay_out({f"{i}": torch.zeros(1000 * i + 1) for i in range(12)})
    for at, part in parts:
        if isinstance(part, torch.Tensor):
            assert at % (PAGE if part.nbytes >= PAGE else 64) == 0
    assert size < sum(part.nbytes if isinstance(part, torch.Tensor) else len(part) for _, part in parts) + 12 * PAGE


def test_two_dtypes_of_one_memory():
    x = torch.zeros(8)
    with pytest.raises(hbmfs.InvalidError, match="different dtypes"):
        lay_out([x, x.view(torch.int32)])


def test_without_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    arrays = {"a": np.arange(5000.0), "b": np.arange(12, dtype=np.uint16).reshape(3, 4).T, "c": np.array(True)}
    hbmfs.save_safetensors(arrays, tmp_path / "model")
    found = hbmfs.load_safetensors(tmp_path / "model", "cpu")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert isinstance(found[name], np.ndarray) and found[name].dtype == array.dtype and np.array_equal(found[name], array)
    with pytest.raises(hbmfs.InvalidError, match="'x' is a Tensor"):
        hbmfs.save_safetensors({"x": torch.zeros(2)}, tmp_path / "other")


def test_ctrl_c_and_a_disk_that_is_full_leave_nothing(tmp_path, monkeypatch):
    """Whatever fails after the draft was begun."""
    publish = _publishing.Draft.publish
    for error in (KeyboardInterrupt(), hbmfs.WriteError(28, "no space left on device")):

        def fail(self, files, error=error):
            raise error

        monkeypatch.setattr(_publishing.Draft, "publish", fail)
        with pytest.raises(type(error)):
            hbmfs.save_safetensors({"x": torch.zeros(5000)}, tmp_path / "model")
        assert os.listdir(tmp_path) == []
    monkeypatch.setattr(_publishing.Draft, "publish", publish)
    hbmfs.save_safetensors({"x": torch.zeros(5000)}, tmp_path / "model")
    assert _publishing.verify(tmp_path / "model") > 20_000


def test_ctrl_c_when_it_was_published_already(tmp_path, monkeypatch):
    ask = _native.Library.ask

    def interrupted(self, name, *arguments):
        code = ask(self, name, *arguments)
        if name == "draft_publish":
            raise KeyboardInterrupt
        return code

    monkeypatch.setattr(_native.Library, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hbmfs.save_safetensors({"x": torch.zeros(5000)}, tmp_path / "model")
    assert _publishing.verify(tmp_path / "model") > 20_000 and os.listdir(tmp_path) == ["model"]


def test_from_a_gpu(tmp_path, gpu):
    """DeviceArrays, whose memory is a fake GPU's, and arrays of the host beside them."""
    np.save(tmp_path / "tokens.npy", np.arange(10_000, dtype=np.uint16))
    with gpu.reader() as reader, hbmfs.open(tmp_path / "tokens.npy", reader=reader) as data:
        x = data.gather([5, 700], 3000)
        with hbmfs.Writer("cuda:0", libraries=gpu.libraries, threads=2) as writer:
            written = hbmfs.save_safetensors({"x": x, "y": np.arange(9)}, tmp_path / "model", writer=writer)
        found = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
        assert np.array_equal(found["x"].numpy(), x.to_numpy()) and torch.equal(found["y"], torch.arange(9))
        assert sum(written.moved.values()) >= x.nbytes
        with pytest.raises(hbmfs.DeviceError, match="writer is for"), hbmfs.Writer("cpu") as writer:
            hbmfs.save_safetensors({"x": x}, tmp_path / "other", writer=writer)
        del x
