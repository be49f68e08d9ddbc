"""load_safetensors(into=): tensors that are there are filled in place, or nothing is changed."""

import json
import weakref

import hbmfs
import numpy as np
import pytest
import safetensors.torch
import torch
from hbmfs._lib import _transfer
from hbmfs._lib.reader import File
from hbmfs.weights import _into, _load, _parts
from test_group import Ranks
from test_weights import random_model, reader, same, small_requests  # noqa: F401 (fixtures)


def empty(tensors):
    """Tensors like others, of other bytes."""
    return {name: torch.ones_like(tensor.reshape(-1).view(torch.uint8)).view(tensor.dtype).view(tensor.shape) for name, tensor in tensors.items()}


def bytes_of(tensors):
    return {name: bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def saved(path, tensors):
    safetensors.torch.save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}, path)
    return safetensors.torch.load_file(path)


@pytest.fixture
def no_small_ones(monkeypatch):
    """No tensor is read together with its neighbours."""
    monkeypatch.setattr(_parts, "SMALL", -1)


def test_every_dtype(path, reader, small_requests):
    expected = saved(path, random_model(1))
    into = empty(expected)
    places = {name: tensor.data_ptr() for name, tensor in into.items()}
    found = hbmfs.load_safetensors(path, into=into, reader=reader)
    same(found, expected)
    assert all(found[name] is into[name] for name in into) and places == {name: tensor.data_ptr() for name, tensor in into.items()}
    assert reader.stats()["requests"] == reader.stats()["files"] == 0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("passing", torch.ones(3), persistent=False)


@pytest.mark.parametrize("both", [False, True])
def test_a_module_with_tied_and_frozen_parameters(path, both):
    """One name of tied parameters is enough; of two the last one wins, as with load_state_dict."""
    model = Model()
    model.embed.weight.requires_grad_(False)
    state = {name: torch.randn(value.shape).to(value.dtype) for name, value in model.state_dict().items() if both or name != "head.weight"}
    saved(path, state)
    version, parameters = model.norm.weight._version, dict(model.named_parameters())
    found = hbmfs.load_safetensors(path, into=model)
    assert found["norm.weight"] is model.norm.weight and dict(model.named_parameters()).keys() == parameters.keys()
    for name, value in model.state_dict().items():
        last = "head.weight" if both and name == "embed.weight" else "embed.weight" if not both and name == "head.weight" else name
        assert torch.equal(value, state[last]), name
    assert model.norm.weight._version > version and torch.equal(model.passing, torch.ones(3))


def test_autograd_sees_it(path):
    saved(path, {"w": torch.ones(4)})
    w = torch.nn.Parameter(torch.zeros(4))
    loss = (w * w).sum()
    hbmfs.load_safetensors(path, into={"w": w})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_tensors(path, dtype):
    expected = saved(path, {"a": torch.randn(100, 3)})["a"].to(dtype)
    with torch.inference_mode():
        a = torch.zeros(100, 3, dtype=dtype)
    hbmfs.load_safetensors(path, into={"a": a}, cast=True)
    with torch.inference_mode():
        assert torch.equal(a, expected)


def test_casts_and_gaps(path, reader, no_small_ones, small_requests, monkeypatch):
    """By scratch memory of a few tensors, beside others that are written straight to."""
    monkeypatch.setattr(_into, "SCRATCH", 100_000)
    allocate, most = _load.Torch.allocate, []

    def counted(library, size):
        most.append(size)
        return allocate(library, size)

    monkeypatch.setattr(_load.Torch, "allocate", counted)
    expected = saved(path, {f"{i:02}": torch.randn(50 + 7 * i, 60) for i in range(30)} | {"half": torch.randn(300, 301).bfloat16()})
    into = {}
    for number, (name, tensor) in enumerate(expected.items()):
        rows, columns = tensor.shape
        into[name] = [
            torch.zeros(rows, columns, dtype=tensor.dtype), torch.zeros(columns, rows, dtype=tensor.dtype).t(), torch.zeros(rows, 3 * columns)[:, columns : 2 * columns],
            torch.zeros(rows, columns, dtype=torch.float64), torch.zeros(rows, columns, dtype=torch.float16),
        ][number % 5]  # fmt: skip
    hbmfs.load_safetensors(path, into=into, cast=True, reader=reader)
    for name, tensor in expected.items():
        assert torch.equal(into[name], tensor.to(into[name].dtype)), name
    assert sum(most) == sum(tensor.nbytes for name, tensor in expected.items() if into[name].dtype != tensor.dtype or not into[name].is_contiguous())


def test_nothing_but_the_targets_is_allocated(path, reader, no_small_ones, monkeypatch):
    expected = saved(path, random_model(2))
    into = empty(expected)
    monkeypatch.setattr(_load.Torch, "allocate", lambda *_: pytest.fail("memory was allocated"))
    same(hbmfs.load_safetensors(path, into=into, reader=reader), expected)


def test_columns_of_one_matrix(path):
    """Fused weights: targets that lie between each other, and share nothing."""
    expected = saved(path, {"q": torch.randn(40, 16), "k": torch.randn(40, 8), "v": torch.randn(40, 8)})
    fused = torch.zeros(40, 32)
    hbmfs.load_safetensors(path, into={"q": fused[:, :16], "k": fused[:, 16:24], "v": fused[:, 24:]})
    assert torch.equal(fused, torch.cat(list(expected[name] for name in "qkv"), 1))
    with pytest.raises(hbmfs.TargetError, match="overlap in memory"):
        hbmfs.load_safetensors(path, into={"q": fused[:, :16], "k": fused[:, 15:23], "v": fused[:, 24:]})


def test_arrays_of_numpy(path):
    expected = saved(path, {"a": torch.randn(30, 4), "b": torch.arange(5)})
    into = {"a": np.zeros((30, 4), np.float32), "b": np.zeros(5, np.int64)}
    found = hbmfs.load_safetensors(path, "cpu", into=into)
    assert found["a"] is into["a"] and np.array_equal(into["a"], expected["a"].numpy()) and np.array_equal(into["b"], expected["b"].numpy())


def test_names_and_slices(path, reader):
    expected = saved(path, {f"{i}": torch.randn(10, 12) for i in range(6)})
    into = empty(expected)
    before = bytes_of(into)
    found = hbmfs.load_safetensors(path, into=into, names=lambda name: name in "13", reader=reader)
    assert list(found) == ["1", "3"]
    assert bytes_of(into) == before | bytes_of({name: expected[name] for name in "13"})
    assert list(hbmfs.load_safetensors(path, into=into, names=["0"], reader=reader)) == ["0"]
    into = {"0": torch.zeros(3, 12), "1": torch.zeros(10, 4), "2": torch.zeros(5, 6, dtype=torch.float64), "3": torch.zeros(10, 12)}
    slices = {"0": (slice(2, 5), slice(None)), "1": (slice(None), slice(4, 8)), "2": (slice(0, 10, 2), slice(1, 12, 2)), "4": hbmfs.SKIP, "5": hbmfs.SKIP}
    found = hbmfs.load_safetensors(path, into=into, slices=slices, cast=True, reader=reader)
    assert list(found) == ["0", "1", "2", "3"]
    for name in "0123":
        assert torch.equal(into[name], expected[name][slices.get(name) or ...].to(into[name].dtype)), name


class Odd(torch.Tensor):
    pass


def frozen_array():
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


REFUSED = {
    "shape": (lambda: torch.zeros(2, 2), "has the shape [2, 2], and the file has [4]"),
    "dtype": (lambda: torch.zeros(4, dtype=torch.int32), "is of int32, and the file has float32: give cast=True"),
    "meta": (lambda: torch.zeros(4, device="meta"), "is on the meta device and has no memory"),
    "expanded": (lambda: torch.zeros(1).expand(4), "has elements that share memory"),
    "strided": (lambda: torch.zeros(9).as_strided((4,), (0,)), "has elements that share memory"),
    "sparse": (lambda: torch.zeros(4).to_sparse(), "is torch.sparse_coo, and no plain memory"),
    "subclass": (lambda: torch.zeros(4).as_subclass(Odd), "is a Odd, whose memory is not known"),
    "lazy": (lambda: torch.nn.UninitializedParameter(), "has no shape yet"),
    "number": (lambda: 3, "is a int, and no tensor"),
    "array": (frozen_array, "cannot be written to"),
    "conjugate": (lambda: torch.zeros(4, dtype=torch.complex64).conj(), "is a lazy conjugate"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(path, kind):
    """The good target beside the bad one keeps its bytes."""
    saved(path, {"a": torch.randn(1000), "x": torch.ones(4)})
    make, why = REFUSED[kind]
    good = torch.zeros(1000)
    with pytest.raises(hbmfs.TargetError) as caught:
        hbmfs.load_safetensors(path, "cpu", into={"a": good, "x": make()})
    assert f"'x' {why}" in str(caught.value) and len(caught.value.differences) == 1
    assert torch.equal(good, torch.zeros(1000))


def test_a_cast_that_loses_more_than_precision(path):
    saved(path, {"x": torch.ones(4)})
    with pytest.raises(hbmfs.TargetError, match="would lose more than precision"):
        hbmfs.load_safetensors(path, into={"x": torch.zeros(4, dtype=torch.int32)}, cast=True)
    with pytest.raises(hbmfs.InvalidError, match="give these as into="):
        hbmfs.load_safetensors(path, "cpu", cast=True)


def test_another_device_than_the_call_says(path):
    saved(path, {"x": torch.ones(4)})
    with pytest.raises(hbmfs.TargetError, match="'x' is on cpu, and device= says cuda:0"):
        hbmfs.load_safetensors(path, "cuda:0", into={"x": torch.zeros(4)})


def test_all_differences_are_in_one_error(path):
    expected = saved(path, {f"{i:03}{'x' * 300}": torch.randn(3, 5) for i in range(200)})
    into = {name: torch.zeros(5, 3, dtype=torch.float64) for name in expected} | {"more": torch.zeros(3)}
    before = bytes_of(into)
    with pytest.raises(hbmfs.TargetError) as caught:
        hbmfs.load_safetensors(path, into=into)
    assert len(caught.value.differences) == 401 and len(str(caught.value)) < 2000 and "391 more" in str(caught.value)
    assert "'more' is in into, and not in the file" in caught.value.differences
    assert bytes_of(into) == before


@pytest.mark.parametrize("error", [RuntimeError("the disk is gone"), KeyboardInterrupt()])
def test_a_load_that_ends_midway(path, reader, no_small_ones, small_requests, error):
    """Each tensor is undefined and named so, or has its old bytes, or its new ones."""
    expected = saved(path, {f"{i:02}": torch.randn(20_000) for i in range(40)})
    into = empty(expected) | {"03": torch.full((20_000,), 3.0, dtype=torch.float64)}
    before, after = bytes_of(into), bytes_of({name: tensor.to(into[name].dtype) for name, tensor in expected.items()})

    def stop(done, total):
        if done > total / 4:
            raise error

    with pytest.raises(hbmfs.UndefinedError if isinstance(error, Exception) else KeyboardInterrupt) as caught:
        hbmfs.load_safetensors(path, into=into, cast=True, reader=reader, progress=stop)
    undefined = caught.value.undefined
    assert 1 <= len(undefined) < 10 and reader.stats()["requests"] == 0
    if isinstance(error, Exception):
        assert f"the disk is gone; {len(undefined)} tensors are undefined now" in str(caught.value) and repr(caught.value.__cause__) == repr(error)
        assert undefined[0] in str(caught.value)
    now = bytes_of(into)
    states = ["undefined" if name in undefined else "new" if now[name] == after[name] else "old" if now[name] == before[name] else "bad" for name in sorted(into)]
    assert states == sorted(states, key=["new", "undefined", "old"].index) and states[0] == "new" and states[-1] == "old"
    hbmfs.load_safetensors(path, into=into, cast=True, reader=reader)
    assert bytes_of(into) == after


def test_scratch_memory_stays_until_its_reads_have_ended(path, reader, no_small_ones, small_requests, monkeypatch):
    scratch, reads, under_way = [], [], []
    allocate, read_into, cancel = _load.Torch.allocate, File.read_into, _transfer.Transfer._cancel

    def allocated(self, size):
        made = allocate(self, size)
        scratch.append(weakref.ref(made))
        return made

    def begun(self, pointer, offset, length):
        request = read_into(self, pointer, offset, length)
        reads.append((request, range(pointer, pointer + length)))
        return request

    def cancelled(self):
        there = [range(made.data_ptr(), made.data_ptr() + made.nbytes) for ref in scratch if (made := ref()) is not None]
        under_way.extend(any(to[0] in memory and to[-1] in memory for memory in there) for request, to in reads if request._handle.value)
        cancel(self)

    monkeypatch.setattr(_load.Torch, "allocate", allocated)
    monkeypatch.setattr(File, "read_into", begun)
    monkeypatch.setattr(_transfer.Transfer, "_cancel", cancelled)
    into = {name: tensor.double() for name, tensor in saved(path, {f"{i:02}": torch.randn(20_000) for i in range(40)}).items()}

    def stop(done, total):
        if done > total / 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        hbmfs.load_safetensors(path, into=into, cast=True, reader=reader, progress=stop)
    assert under_way and all(under_way) and caught.value.undefined
    assert [ref for ref in scratch if ref() is not None] == [], "the traceback keeps memory"


def test_a_failure_before_the_first_read_leaves_all_as_it_was(path, monkeypatch):
    expected = saved(path, {"a": torch.randn(5)})
    into = empty(expected)
    before = bytes_of(into)
    monkeypatch.setattr(_load, "open_files", lambda *_: (_ for _ in ()).throw(hbmfs.StaleError("gone")))
    with pytest.raises(hbmfs.StaleError):
        hbmfs.load_safetensors(path, into=into)
    assert bytes_of(into) == before


def test_from_a_mount(mount, source):
    expected = {}
    for shard in sorted((source / "safetensors-sharded").glob("*.safetensors")):
        expected |= safetensors.torch.load_file(shard)
    into = empty(expected)
    same(hbmfs.load_safetensors(mount / "safetensors-sharded", into=into), expected)


def together(rank, size, path, seed):
    """The same tensors on all ranks, random slices, columns; some targets with gaps or of another dtype."""
    _into.ALONE, _into.SCRATCH, _parts.SMALL, _parts.PACK = 1000, 60_000, 20_000, 50_000
    from hbmfs.weights import _columns

    _columns.LEAST = 100
    expected, wants, into = safetensors.torch.load_file(path), {}, {}
    for number, (name, tensor) in enumerate(expected.items()):
        random = np.random.default_rng([seed, number, rank])
        kind = number % 4
        if kind == 1:
            wants[name] = tuple(slice(*sorted(random.integers(0, length + 1, 2).tolist())) for length in tensor.shape)
        elif kind == 2 and tensor.dim() > 1:
            width = tensor.shape[-1]
            wants[name] = (*[slice(None)] * (tensor.dim() - 1), slice(rank * width // size, (rank + 1) * width // size))
        elif kind == 3 and random.integers(4) == 0:
            wants[name] = hbmfs.SKIP
            continue
        expected[name] = part = tensor[wants.get(name, ...)]
        gaps = part.dim() > 0 and random.integers(3) == 0
        target = torch.zeros((*part.shape[:-1], 2 * part.shape[-1]), dtype=part.dtype)[..., : part.shape[-1]] if gaps else torch.zeros(part.shape, dtype=part.dtype)
        into[name] = target.double() if part.dtype == torch.float32 and random.integers(2) else target
    with hbmfs.Reader("cpu") as own:
        found = hbmfs.load_safetensors(path, into=into, cast=True, slices=wants, group=torch.distributed.group.WORLD, reader=own)
        read = sum(own.stats()["bytes"].values())
    assert found.keys() == into.keys()
    for name in into:
        want = expected[name].to(into[name].dtype)
        assert torch.equal(into[name].contiguous().reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8)), name
    torch.distributed.barrier()  # rank 0 holds the store
    return read


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_in_a_group(tmp_path, size, seed):
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(seed)
    tensors = {f"{i}": torch.from_numpy(rng.standard_normal((int(rng.integers(1, 300)), int(rng.integers(1, 300))), np.float32)) for i in range(40)}
    safetensors.torch.save_file(tensors | random_model(seed, ((33, 129), (), (0, 4), (70_001,))), path)
    read = Ranks(size, together, path, seed).wait()
    assert all(isinstance(one, int) for one in read), read


def evenly(rank, size, path):
    _into.ALONE, _parts.SMALL = 1000, 1000
    into = {name: torch.zeros_like(tensor) for name, tensor in safetensors.torch.load_file(path).items()}
    with hbmfs.Reader("cpu") as own:
        hbmfs.load_safetensors(path, into=into, group=torch.distributed.group.WORLD, reader=own)
        same(into, safetensors.torch.load_file(path))
        torch.distributed.barrier()
        return sum(own.stats()["bytes"].values())


def test_ranks_read_each_byte_of_large_tensors_once(path):
    payload = 4 * sum(tensor.numel() for tensor in saved(path, {f"{i}": torch.randn(301, 1000) for i in range(5)}).values())
    read = Ranks(3, evenly, path).wait()
    assert payload <= sum(read) <= payload + 5 * 3 * 3 * 3 * _into.EVEN and max(read) < payload / 2


def differently(rank, size, path, other):
    into = {"a": torch.zeros(100_000 if rank == 0 or other != "shape" else 3)}
    try:
        if rank == 1 and other == "fresh":
            hbmfs.load_safetensors(path, "cpu", group=torch.distributed.group.WORLD)
        else:
            hbmfs.load_safetensors(path, into=into, group=torch.distributed.group.WORLD)
    except hbmfs.Error as err:
        torch.distributed.barrier()
        return type(err).__name__, str(err), not into["a"].any().item()
    return None


@pytest.mark.parametrize(("other", "why"), [("shape", "has the shape [3]"), ("fresh", "all ranks must load alike")])
def test_a_load_that_one_rank_refuses(path, other, why):
    saved(path, {"a": torch.ones(100_000)})
    for _, text, untouched in Ranks(2, differently, path, other).wait():
        assert why in text and untouched


def test_a_directory_of_an_adapter(tmp_path, reader):
    """A file of many small tensors, which are read at once, goes to those of them that a mapping names by their names in the file."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8}))
    expected = saved(tmp_path / "adapter_model.safetensors", {f"base.{i}.lora_{kind}.weight": torch.randn(8, 64) for i in range(50) for kind in "AB"})
    into = {name: torch.nn.Parameter(torch.zeros(tensor.shape)) for name, tensor in expected.items()}
    before = reader.stats()["reads"]
    hbmfs.load_safetensors(tmp_path, into=into, reader=reader)
    assert bytes_of(into) == bytes_of(expected) and reader.stats()["reads"] == before + 1


def test_requests_are_those_of_a_fresh_load(path, reader, monkeypatch):
    """Large tensors are cut into requests, and no more bytes are under way than otherwise."""
    monkeypatch.setattr(_transfer, "REQUEST", 1 << 20)
    into = empty(saved(path, {"a": torch.randn(3 << 18), "b": torch.randn(100)}))
    before = reader.stats()["reads"]
    hbmfs.load_safetensors(path, into=into, reader=reader)
    assert reader.stats()["reads"] - before == 4  # b is read by itself, as its neighbour is large
