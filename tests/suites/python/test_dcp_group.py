"""DCPReader with a group: ranks of gloo on the CPU, against torch's own FileSystemReader."""

import functools
import os
import shutil
import signal
import warnings
import weakref

import hbmfs
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hbmfs._lib import _transfer
from hbmfs.checkpoints import _dcp_reads, _dcp_shared
from hbmfs.group import _board
from long import LONG
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is disabled"), pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")]

SAVED_BY = 8 if LONG else 4


def full(seed):
    """The tensors of a model and its optimizer, by how ranks split them: small, large, and of sizes that do not divide."""
    g = torch.Generator().manual_seed(seed)

    def tensors(*shapes):
        return {f"{number}": torch.randn(shape, generator=g).to(dtype) for number, (dtype, *shape) in enumerate(shapes)}

    wide = [(torch.float32, 64, 300), (torch.bfloat16, 37, 50), (torch.float32, 1, 40), (torch.float64, 16, 8), (torch.float32, 200, 129)]
    return {
        "fsdp": tensors(*wide, (torch.bool, 1000), (torch.int64, 3)),
        "ddp": tensors(*wide, *[(torch.float32, 5)] * 20, (torch.complex64, 300, 7), (torch.bfloat16,)),
        "tp": tensors(*wide, (torch.bfloat16, 3, 40, 500), (torch.int16, 900, 8)),
        "hsdp": tensors(*wide, (torch.uint8, 12_345)),
        "both": tensors(*wide),
    }


@functools.cache
def mesh(*shape):
    return init_device_mesh("cpu", shape)


def split(name, tensor, size, change=0):
    """A tensor as its rank has it. With change, another kind of split than it was saved with."""
    two = (2, size // 2) if size > 1 else (1, 1)
    last = Shard(tensor.dim() - 1 if tensor.dim() < 3 else 1)
    kinds = {
        "fsdp": ((size,), [Shard(0)]),
        "tp": ((size,), [last]),
        "hsdp": (two, [Replicate(), Shard(0)]),
        "both": (two, [Shard(0), last]),
        "ddp": None,
    }
    kind = kinds[name if not change else list(kinds)[(list(kinds).index(name) + change) % len(kinds)]]
    if kind is None or tensor.dim() == 0:
        return tensor.clone()
    return distribute_tensor(tensor, mesh(*kind[0]), kind[1], src_data_rank=None)


def state(seed, size, change=0):
    found = {name: {key: split(name, tensor, size, change) for key, tensor in tensors.items()} for name, tensors in full(seed).items()}
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 70), torch.nn.Linear(70, 11))
    fully_shard(model, mesh=mesh(size))
    return found | {"model": model.state_dict(), "step": seed, "lr": [seed / 7, "constant"]}


def local(value):
    if isinstance(value, dict):
        return {key: local(inside) for key, inside in value.items()}
    if isinstance(value, DTensor):
        return local(value.to_local())
    return value.detach().contiguous().reshape(-1).view(torch.uint8) if isinstance(value, torch.Tensor) else value


def same(found, expected, where=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            same(found[key], value, f"{where}/{key}")
    else:
        assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected, where


def save(rank, size, path):
    dcp.save(state(1, size), storage_writer=FileSystemWriter(path))
    return "saved"


def ranks(size, job, *arguments):
    from test_group import Ranks

    return Ranks(size, told, job, *arguments)


def told(rank, size, job, *arguments):
    """Torch's exception is no Exception, and cannot be sent to another process."""
    try:
        return job(rank, size, *arguments)
    except dcp.api.CheckpointException as err:
        raise AssertionError(str(err)) from None


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    assert ranks(SAVED_BY, save, path).wait() == ["saved"] * SAVED_BY
    return path


SIZES = {"SHARE": 40_000, "SCRATCH": 30_000, "UNITS": 6}, {"SMALL": 3000, "BATCH": 20_000, "GAP": 0, "ROW": 4000}
"""Small sizes, so that there are many waves, and no gap is read."""


def shrink(sizes):
    for module, values in zip((_dcp_shared, _dcp_reads), sizes, strict=True):
        for name, value in values.items():
            setattr(module, name, value)
            if hasattr(_dcp_shared, name):
                setattr(_dcp_shared, name, value)


def both(path, size, change):
    """Loads with torch's reader and with ours. Gives the bytes that ours read."""
    expected = state(2, size, change)
    dcp.load(expected, storage_reader=FileSystemReader(path))
    return ours(path, size, change, expected)


def ours(path, size, change, expected):
    """Loads with our reader, and compares. Gives the bytes that it read."""
    found = state(3, size, change)
    with hbmfs.Reader("cpu") as reader:
        dcp.load(found, storage_reader=hbmfs.DCPReader(path, "cpu", reader=reader, group=torch.distributed.group.WORLD))
        stats = reader.stats()
    assert stats["files"] == stats["requests"] == 0
    same(local(found), local(expected))
    return sum(stats["bytes"].values())


def load(rank, size, path):
    shrink(SIZES)
    read = [ours(path, size, change, state(1, size, change)) for change in (0, 1, 3)]
    shrink(({"SHARE": 64 << 20, "SCRATCH": 64 << 20, "UNITS": 256}, {"SMALL": 256 << 10, "BATCH": 16 << 20, "GAP": 64 << 10, "ROW": 2 << 20}))
    return [*read, both(path, size, 0)]


def payload():
    model = torch.nn.Sequential(torch.nn.Linear(30, 70), torch.nn.Linear(70, 11))
    return sum(tensor.nbytes for tensors in full(1).values() for tensor in tensors.values()) + sum(tensor.nbytes for tensor in model.state_dict().values())


@pytest.mark.parametrize("size", [8, 4, 1] if LONG else [4, 2, 1])
def test_each_byte_is_read_once(checkpoint, size):
    """The same bits as were saved, and as torch's reader loads, whatever the ranks and their placements are."""
    *exact, near = zip(*ranks(size, load, checkpoint).wait(), strict=True)
    for read in exact:
        assert sum(read) == payload(), read
    files = sum(file.stat().st_size for file in checkpoint.glob("*.distcp"))
    assert payload() <= sum(near) <= files, near
    assert max(exact[0]) < 1.5 * payload() / size, exact[0]


def replicated(seed):
    g = torch.Generator().manual_seed(seed)
    return {f"{number}": torch.randn(size, generator=g) for number, size in enumerate([3, 70_000, 5, 4000, 40_000, 1, 100, 90_000])}


def saved(path, seed=1):
    dcp.save(replicated(seed), storage_writer=FileSystemWriter(path), no_dist=True)
    return path


def others_of(target):
    """Targets that cannot hold the bytes of the file: strided ones, and ones of another dtype."""
    return {name: torch.zeros(tensor.numel(), 2)[:, 0] if int(name) % 2 else tensor.double() for name, tensor in target.items()}


def load_replicated(path, target, group, **options):
    dcp.load(target, storage_reader=hbmfs.DCPReader(path, group=group, **options))
    for name, tensor in replicated(1).items():
        assert torch.equal(target[name].to(tensor.dtype), tensor), name


def targets(rank, size, path):
    """Ranks have different targets of the same bytes, and each has little scratch memory."""
    shrink(SIZES)
    most, rooms, make = 0, [], _dcp_shared.room

    def room(size, device):
        nonlocal most
        made = make(size, device)
        rooms[:] = [alive for alive in rooms if alive() is not None]
        rooms.append(weakref.ref(made))
        most = max(most, sum(alive().numel() for alive in rooms if alive() is not None))
        return made

    _dcp_shared.room = room
    target = replicated(2)
    load_replicated(path, others_of(target) if rank else target, torch.distributed.group.WORLD)
    return most


def test_targets_of_other_strides_and_dtypes(tmp_path):
    plain, *others = ranks(3, targets, saved(tmp_path)).wait()
    assert plain < 20_000 < max(others) <= 3 * SIZES[0]["SCRATCH"], others


def boxes(rank, size, path, seed):
    """Each rank wants a random box of each tensor: some alike, some that overlap, some columns and some rows."""
    from test_dcp import piece

    shrink(SIZES)
    expected, found, parts = mixed(), {}, {}
    for number, (name, tensor) in enumerate(expected.items()):
        mine = np.random.default_rng([seed, number, rank if number % 3 else rank // 2])
        cut = []
        for length in tensor.shape:
            begin, end = sorted(mine.choice(length + 1, 2, replace=False).tolist())
            cut.append(slice(begin, end) if mine.integers(2) else slice(0, length))
        parts[name] = torch.zeros_like(tensor[tuple(cut)], dtype=[tensor.dtype, torch.float64][int(mine.integers(2))])
        found[name] = piece(tensor, parts[name], tuple(cut))
        expected[name] = tensor[tuple(cut)]
    dcp.load(found, storage_reader=hbmfs.DCPReader(path, group=torch.distributed.group.WORLD))
    for name, part in parts.items():
        assert torch.equal(part, expected[name].to(part.dtype)), name
    return "same"


def mixed():
    g = torch.Generator().manual_seed(4)
    shapes = [(40, 30), (5, 3), (3, 70, 90), (200, 100), (64, 2, 2, 9), (11,), (30_000,), (20, 1500)]
    tensors = [torch.randn(*shape, generator=g) for shape in shapes] + [torch.randn(90, 110, generator=g).t(), torch.randn(7, 90, 30, generator=g).transpose(0, 2)]
    return {f"{number:02}": tensor for number, tensor in enumerate(tensors)}


def test_boxes_of_all_kinds(tmp_path):
    dcp.save(mixed(), storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    for seed in range(2):
        assert ranks(4, boxes, tmp_path, seed).wait() == ["same"] * 4


def fail(rank, size, path, other):
    """Rank 1 is given another checkpoint."""
    from test_group import descriptors, left_open

    world = torch.distributed.group.WORLD
    load_replicated(path, replicated(2), world)
    before = descriptors()
    try:
        load_replicated(other if rank == 1 else path, replicated(3), world)
    except dcp.api.CheckpointException as err:
        found = {failed: (type(failure[0]).__name__, str(failure[0])) for failed, failure in err.failures.items()}
        left = left_open(before)
        torch.distributed.barrier()
        load_replicated(path, replicated(2), world)  # the group is as good as before
        return found, left
    return "loaded"


@pytest.mark.parametrize(
    ("damage", "kind", "reason"),
    [
        ("short", "FormatError", "but the file has"),
        ("torn", "FormatError", "is not what torch.save writes"),
        ("missing", "NotFoundError", "distcp"),
        ("longer", "GroupError", "do not see the same files"),
        ("another", "GroupError", "load different checkpoints"),
    ],
)
def test_all_ranks_end_with_the_failure_of_one(tmp_path, damage, kind, reason):
    path, other = saved(tmp_path / "path"), tmp_path / "other"
    if damage == "another":
        saved(other, 2)
    else:
        shutil.copytree(path, other)
        (file,) = other.glob("*.distcp")
        data = file.read_bytes()
        file.write_bytes({"short": data[:-1], "torn": bytes(2000) + data[2000:], "longer": data + b"0", "missing": b""}[damage])
        if damage == "missing":
            file.unlink()
    for found, left in ranks(3, fail, path, other).wait():
        assert not left and found.keys() == {0, 1, 2}, (found, left)
        for rank, (name, text) in found.items():
            assert name == kind and reason in text, (rank, name, text)
            assert kind == "GroupError" or rank == 1 or text.startswith("rank 1 of the group failed"), (rank, text)


def hang(rank, size, path, no_dist):
    """Rank 1 is killed while it reads."""
    from test_group import SILENCE

    shrink(SIZES)
    _board.SILENCE = SILENCE
    if rank == 1:
        begin = _transfer.Transfer.then

        def stop(self, call):
            stop.calls += 1
            if stop.calls == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            begin(self, call)

        stop.calls = 0
        _transfer.Transfer.then = stop
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            dcp.load(others_of(replicated(2)), storage_reader=hbmfs.DCPReader(path, group=torch.distributed.group.WORLD), no_dist=no_dist)
        except (dcp.api.CheckpointException, RuntimeError) as err:  # torch's own, where it asks a rank that is gone
            return str(err), [str(warning.message) for warning in heard]
    return "loaded"


@pytest.mark.parametrize("no_dist", [False, True])
def test_a_rank_that_is_gone(tmp_path, no_dist):
    for text, heard in ranks(3, hang, saved(tmp_path), no_dist).wait([0, 2]):
        assert any("rank 1 of the group (process" in line and "is gone: last seen" in line for line in heard), (text, heard)
        assert not no_dist or "rank 1 of the group (process" in text, text
