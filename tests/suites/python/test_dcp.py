"""DCPReader against torch's own FileSystemReader, on checkpoints of torch's own FileSystemWriter."""

import copy
import io
import pickle
import zipfile

import hbmfs
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs.checkpoints import _dcp_reads, torch_save
from hbmfs.checkpoints import dcp as ours
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
    pytest.mark.filterwarnings("ignore:.*is no checkpoint"),
]

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def random_tensor(generator, *shape, dtype=torch.float32):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8).view(dtype).view(shape)


def state(seed):
    """What a trainer keeps: tensors of all kinds and sizes, nested, beside what is no tensor."""
    g = torch.Generator().manual_seed(seed)
    model = {f"{dtype}.{n}": random_tensor(g, n, 7, dtype=dtype) for dtype in DTYPES for n in (3, 6000)}
    model["transposed"] = random_tensor(g, 300, 500).t()
    model["large transposed"] = random_tensor(g, 700, 500).t()
    model["scalar"] = random_tensor(g)
    model["empty"] = torch.empty(0, 5)
    model["parameter"] = torch.nn.Parameter(torch.randn(9, 9, generator=g))
    model["conjugate"] = torch.conj(torch.randn(4, dtype=torch.complex64, generator=g))
    optimizer = {"state": {0: {"exp_avg": random_tensor(g, 1000, 300), "step": torch.tensor(float(seed))}}, "param_groups": [{"lr": seed / 7, "params": [0]}]}
    return {"model": model, "optimizer": optimizer, "step": seed, "name": f"run {seed}", "list": [random_tensor(g, 5), seed]}


def raw(tensor):
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)


def same(found, expected, where=""):
    if isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride()), where
        assert torch.equal(raw(found), raw(expected)), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            same(found[key], value, f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, value in enumerate(expected):
            same(found[i], value, f"{where}/{i}")
    else:
        assert found == expected, where


def load_both(path, target, **options):
    """Loads with torch's reader and with ours, into two equal states."""
    expected, found = copy.deepcopy(target), copy.deepcopy(target)
    dcp.load(expected, storage_reader=FileSystemReader(path), no_dist=True)
    dcp.load(found, storage_reader=hbmfs.DCPReader(path, **options), no_dist=True)
    same(found, expected)
    return found


@pytest.fixture
def follows(monkeypatch):
    """Counts the tensors whose elements were found in the file, and those that were left to torch.load."""
    counts = {True: 0, False: 0}

    def find(entry):
        found = torch_save.find_tensor(entry)
        counts[found is not None] += 1
        return found

    monkeypatch.setattr(ours, "find_tensor", find)
    return counts


@pytest.fixture
def fails(tmp_path):
    """Loads what must not load, and gives the exception behind torch's own."""

    def load(target, path=tmp_path, **options):
        with pytest.raises(dcp.api.CheckpointException) as caught:
            dcp.load(target, storage_reader=hbmfs.DCPReader(path, **options), no_dist=True)
        return caught.value.failures[0][0]

    return load


@pytest.mark.parametrize("options", [{}, {"thread_count": 3}, {"single_file_per_rank": False}], ids=["one file", "three files", "a file each"])
def test_a_trainers_state(tmp_path, follows, options):
    saved = state(1)
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path, **options), no_dist=True)
    same(load_both(tmp_path, state(2)), saved)
    assert follows == {True: 41, False: 1}, "of all tensors only the conjugate is for torch.load"


def test_small_requests_and_batches(tmp_path, monkeypatch):
    from hbmfs._lib import _transfer

    monkeypatch.setattr(_transfer, "REQUEST", 40_000)
    monkeypatch.setattr(_transfer, "AHEAD", 160_000)
    saved = state(3)
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    for batch, gap, small in ((20_000, 64 << 10, 5000), (1 << 20, 0, 1 << 20), (1 << 20, 1 << 20, 0)):
        monkeypatch.setattr(_dcp_reads, "BATCH", batch)
        monkeypatch.setattr(_dcp_reads, "GAP", gap)
        monkeypatch.setattr(_dcp_reads, "SMALL", small)
        same(load_both(tmp_path, state(4)), saved)


def test_other_strides_and_dtypes_of_the_target(tmp_path):
    g = torch.Generator().manual_seed(5)
    saved = {name: torch.randn(400, 300, generator=g) for name in "abcd"} | {"e": torch.randn(3, 4, generator=g)}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    wide = torch.zeros(400, 900)
    target = {
        "a": torch.zeros(300, 400).t(),
        "b": torch.zeros(400, 300, dtype=torch.bfloat16),
        "c": wide[:, 300:600],
        "d": torch.zeros(400, 300, dtype=torch.float64),
        "e": torch.zeros(4, 3).t(),
    }
    expected = {name: tensor.clone() for name, tensor in target.items()}
    dcp.load(expected, storage_reader=FileSystemReader(tmp_path), no_dist=True)
    dcp.load(target, storage_reader=hbmfs.DCPReader(tmp_path), no_dist=True)
    for name in saved:
        assert torch.equal(target[name], expected[name]) and torch.equal(target[name], saved[name].to(target[name].dtype))
    assert torch.equal(wide[:, 300:600], saved["c"]) and not wide[:, :300].any() and not wide[:, 600:].any()


def cut(tensor, rows, columns):
    """A tensor that says of itself that it is in pieces, as one of many ranks would: saved and loaded piece by piece."""

    def chunks():
        bounds = [[0, *cuts, size] for cuts, size in zip((rows, columns), tensor.shape, strict=True)]
        return [
            ChunkStorageMetadata(torch.Size([top, left]), torch.Size([bottom - top, right - left]))
            for top, bottom in zip(bounds[0], bounds[0][1:], strict=False)
            for left, right in zip(bounds[1], bounds[1][1:], strict=False)
        ]

    def write_items(name, value):
        properties = TensorProperties.create_from_tensor(tensor)
        return [
            WriteItem(dcp.metadata.MetadataIndex(name, chunk.offsets, i), WriteItemType.SHARD, None, TensorWriteData(chunk, properties, tensor.size()))
            for i, chunk in enumerate(chunks())
        ]

    def shard(index):
        chunk = next(chunk for chunk in chunks() if chunk.offsets == index.offset)
        (top, left), (height, width) = chunk.offsets, chunk.sizes
        return tensor[top : top + height, left : left + width]

    tensor.__create_chunk_list__, tensor.__create_write_items__, tensor.__get_tensor_shard__ = chunks, write_items, shard
    return tensor


@pytest.mark.parametrize(("shape", "runs"), [((40, 30), False), ((1000, 700), False), ((300, 700), True)], ids=["small", "large", "runs"])
def test_resharded(tmp_path, monkeypatch, shape, runs):
    """Saved by one cut and loaded by another: pieces are narrowed at both ends, and rows are not next to each other."""
    if runs:
        monkeypatch.setattr(_dcp_reads, "GAP", 0)
        monkeypatch.setattr(_dcp_reads, "BATCH", 100_000)
    random = np.random.default_rng(6)
    for round in range(6):
        cuts = [sorted(random.integers(1, size, random.integers(0, 4)).tolist()) for size in (*shape, *shape)]
        saved = torch.randn(*shape, generator=torch.Generator().manual_seed(round)).to(DTYPES[9 + round % 4])
        path = tmp_path / str(round)
        dcp.save({"x": cut(saved.clone(), cuts[0], cuts[1])}, storage_writer=FileSystemWriter(path), no_dist=True)
        for rows, columns in ((cuts[2], cuts[3]), ([], []), (cuts[2], [])):
            expected, found = (cut(torch.zeros_like(saved), rows, columns) for _ in range(2))
            dcp.load({"x": expected}, storage_reader=FileSystemReader(path), no_dist=True)
            dcp.load({"x": found}, storage_reader=hbmfs.DCPReader(path), no_dist=True)
            assert torch.equal(expected, saved) and torch.equal(found, saved), (round, cuts)


def piece(whole, part, cut):
    """A tensor of the shape of the whole, of which this rank has only a part."""
    first = [part.start or 0 if isinstance(part, slice) else 0 for part in (*cut, *[slice(None)] * whole.dim())[: whole.dim()]]
    found = torch.zeros_like(whole)
    found.__create_chunk_list__ = lambda: [ChunkStorageMetadata(torch.Size(first), part.size())]
    found.__get_tensor_shard__ = lambda index: part
    found.__create_write_items__ = None
    return found


@pytest.mark.parametrize("transposed", [False, True])
def test_columns(tmp_path, monkeypatch, transposed):
    """Of columns with much between them, nothing else is read."""
    monkeypatch.setattr(_dcp_reads, "GAP", 500)
    saved = torch.randn(3, 200, 1000).transpose(1, 2 if transposed else 1)
    dcp.save({"x": saved}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    for dtype in (torch.float32, torch.float64):
        for cut in (np.s_[:, :, 100:300], np.s_[:, 500:600], np.s_[1:, 3:100, 20:]):
            part = torch.zeros_like(saved[cut], dtype=dtype, memory_format=torch.contiguous_format)
            found = piece(saved, part, cut)
            with hbmfs.Reader("cpu") as reader:
                dcp.load({"x": found}, storage_reader=hbmfs.DCPReader(tmp_path, reader=reader), no_dist=True)
                assert sum(reader.stats()["bytes"].values()) == saved[cut].nbytes
            assert torch.equal(part, saved[cut].to(dtype))


def test_a_part_of_a_checkpoint(tmp_path):
    dcp.save(state(7), storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    target = {"optimizer": state(8)["optimizer"]}
    same(load_both(tmp_path, target), {"optimizer": state(7)["optimizer"]})


def test_used_again_for_another_checkpoint(tmp_path):
    for seed in (9, 10):
        dcp.save(state(seed), storage_writer=FileSystemWriter(tmp_path / str(seed)), no_dist=True)
    reader = hbmfs.DCPReader(tmp_path / "9")
    for seed in (9, 10, 9):
        target = state(11)
        dcp.load(target, storage_reader=reader, checkpoint_id=tmp_path / str(seed), no_dist=True)
        same(target, state(seed))
    assert reader.validate_checkpoint_id(tmp_path / "9")


def test_a_reader_of_the_caller(tmp_path):
    dcp.save(state(12), storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    seen = []
    with hbmfs.Reader("cpu") as reader:
        same(load_both(tmp_path, state(13), reader=reader, progress=lambda done, total: seen.append((done, total))), state(12))
        stats = reader.stats()
        assert stats["files"] == stats["requests"] == 0 and stats["bytes"]["host"] > 1_000_000
        assert seen == sorted(seen) and seen[-1][0] == seen[-1][1]
        with pytest.raises(hbmfs.DeviceError, match="the reader is for cpu"):
            hbmfs.DCPReader(tmp_path, "cuda:0", reader=reader)


def test_compressed_streams(tmp_path):
    """torch's experimental extensions transform the stream of an entry; torch undoes it."""
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension

    class Flip(StreamTransformExtension):
        """Inverts every byte."""

        @staticmethod
        def registry_name():
            return "flip"

        @staticmethod
        def from_descriptor(version):
            return Flip()

        def get_descriptor(self):
            return "flip/1"

        def transform_to(self, output):
            class Stream(io.RawIOBase):
                def writable(self):
                    return True

                def write(self, data):
                    return output.write(bytes(255 - byte for byte in bytes(data)))

            return Stream()

        def transform_from(self, input):
            return io.BytesIO(bytes(255 - byte for byte in input.read(-1)))

    registry = ExtensionRegistry()
    registry.extensions["flip"] = Flip
    saved = {"a": torch.arange(100), "b": torch.ones(3, 3), "n": 5}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path, _extensions=[Flip()]), no_dist=True)
    target = {"a": torch.zeros(100, dtype=torch.int64), "b": torch.zeros(3, 3), "n": 0}
    dcp.load(target, storage_reader=hbmfs.DCPReader(tmp_path, _extension_registry=registry), no_dist=True)
    same(target, saved)


def test_a_checkpoint_in_safetensors_form(tmp_path, fails):
    """torch's own reader cannot read it either; load_safetensors can."""
    saved = {"a": torch.arange(9.0), "b": torch.ones(3, 3)}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path, serialization_format=SerializationFormat.SAFETENSORS), no_dist=True)
    target = {"a": torch.zeros(9), "b": torch.zeros(3, 3)}
    error = fails(target)
    assert isinstance(error, hbmfs.FormatError) and "load_safetensors" in str(error)
    same(dict(sorted(hbmfs.load_safetensors(next(tmp_path.glob("*.distcp")), "cpu").items())), saved)


def test_no_checkpoint(tmp_path, fails):
    """torch 2.9 drops what read_metadata raises and asserts that there is some, so the sentence comes as a warning."""
    target = {"a": torch.zeros(2)}
    with pytest.warns(RuntimeWarning, match="is no checkpoint"):
        fails(target)
    for damaged in (b"", b"nothing", pickle.dumps(3)[:-1]):
        (tmp_path / ".metadata").write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="cannot be read"):
            fails(target)
        with pytest.raises(hbmfs.FormatError), pytest.warns(RuntimeWarning):
            hbmfs.DCPReader(tmp_path).read_metadata()
    with pytest.raises(hbmfs.NotFoundError, match="is no checkpoint"):
        hbmfs.DCPReader(tmp_path / "none").read_metadata()


def changed(path, change):
    """Changes the storage information of a checkpoint."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        change(info)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"relative_path": "../outside.distcp"}, hbmfs.FormatError, "outside of the checkpoint"),
        ({"relative_path": "/etc/passwd"}, hbmfs.FormatError, "outside of the checkpoint"),
        ({"relative_path": "__9_9.distcp"}, hbmfs.NotFoundError, "__9_9.distcp"),
        ({"relative_path": "."}, hbmfs.FormatError, "outside of the checkpoint"),
        ({"offset": -8}, hbmfs.FormatError, "is at -8"),
        ({"offset": 1 << 60}, hbmfs.FormatError, "but the file has"),
        ({"length": 1 << 60}, hbmfs.FormatError, "but the file has"),
        ({"length": -1}, hbmfs.FormatError, "-1 bytes"),
        ({"length": 0}, hbmfs.FormatError, "not what torch.save writes"),
        ({"length": 700}, hbmfs.FormatError, "not what torch.save writes"),
        ({"offset": 3}, hbmfs.FormatError, "not what torch.save writes"),
    ],
    ids=range(11),
)
def test_metadata_that_lies(tmp_path, fails, change, error, says):
    path = tmp_path / "checkpoint"
    dcp.save({"a": torch.arange(500)}, storage_writer=FileSystemWriter(path), no_dist=True)
    (tmp_path / "outside.distcp").write_bytes(b"secret")
    changed(path, lambda info: vars(info).update({"length": info.length - 3, **change} if change == {"offset": 3} else change))
    target = {"a": torch.zeros(500, dtype=torch.int64)}
    found = fails(target, path)
    assert isinstance(found, error) and says in str(found) and "\n" not in str(found), found
    assert not target["a"].any()


def test_damaged_entries_are_refused_or_as_torch_reads_them(tmp_path):
    """Bytes of the archive around the elements, one after the other. What torch refuses may not load; what loads is
    what torch loads, or an archive whose directory is whole, since its checksums are not compared by either."""
    saved = {"a": torch.arange(5, dtype=torch.int32)}
    dcp.save(saved, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    file = next(tmp_path.glob("*.distcp"))
    whole = file.read_bytes()
    random = np.random.default_rng(14)
    refused = loaded = 0
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= int(random.integers(1, 256))
        file.write_bytes(damaged)
        results = []
        for reader in (FileSystemReader(tmp_path), hbmfs.DCPReader(tmp_path)):
            target = {"a": torch.zeros(5, dtype=torch.int32)}
            try:
                dcp.load(target, storage_reader=reader, no_dist=True)
                results.append(target["a"].tolist())
            except dcp.api.CheckpointException as err:
                failure = err.failures[0][0]
                assert isinstance(failure, hbmfs.Error) or len(results) == 0, failure
                results.append(None)
        if results[1] is None:
            refused += 1
        else:
            loaded += 1
            assert results[0] in (None, results[1]), at
    assert refused > 100 and loaded > 100


def test_an_archive_that_points_elsewhere(tmp_path, fails):
    """A pickle that wants more elements than there are, and one that wants to run something."""
    dcp.save({"a": torch.arange(500)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    file = next(tmp_path.glob("*.distcp"))

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    def says(size):
        changed(tmp_path, lambda info: vars(info).update(offset=0, length=size))

    for thing in (Evil(), torch.empty(0).set_(torch.zeros(4).untyped_storage(), 0, (4,), (1,)), {"a": 1}, 5, "text"):
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        file.write_bytes(buffer.getvalue())
        says(len(buffer.getvalue()))
        assert isinstance(fails({"a": torch.zeros(500, dtype=torch.int64)}), hbmfs.FormatError), thing
    assert not (tmp_path / "ran").exists()


def test_archives_that_are_left_to_torch(tmp_path):
    """Compressed records, a big-endian storage, and the form before zip."""
    tensor = torch.arange(500)
    plain, legacy, packed = io.BytesIO(), io.BytesIO(), io.BytesIO()
    torch.save(tensor, plain)
    torch.save(tensor, legacy, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(plain) as archive, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as other:
        for info in archive.infolist():
            other.writestr(info.filename, archive.read(info))
    path = tmp_path / "entry"
    for data, found in ((plain, True), (legacy, False), (packed, False)):
        path.write_bytes(data.getvalue())
        with open(path, "rb") as file:
            entry = torch_save.Slice(file.fileno(), 0, len(data.getvalue()))
            assert (torch_save.find_tensor(entry) is not None) == found


def test_ctrl_c_leaves_nothing(tmp_path):
    dcp.save(state(15), storage_writer=FileSystemWriter(tmp_path), no_dist=True)

    def stop(done, total):
        raise KeyboardInterrupt

    with hbmfs.Reader("cpu") as reader:
        with pytest.raises((KeyboardInterrupt, dcp.api.CheckpointException)):
            dcp.load(state(16), storage_reader=hbmfs.DCPReader(tmp_path, "cpu", reader=reader, progress=stop), no_dist=True)
        stats = reader.stats()
        assert stats["files"] == stats["requests"] == 0
        same(load_both(tmp_path, state(17), device="cpu", reader=reader), state(15))
