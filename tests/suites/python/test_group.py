"""load_safetensors with a group: ranks of gloo on the CPU, each a process."""

import contextlib
import datetime
import gc
import json
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
import types

import hbmfs
import numpy as np
import pytest
import safetensors.torch
import torch
from hbmfs._lib import _transfer
from hbmfs.group import _board
from hbmfs.weights import _columns, _load, _parts
from test_weights import random_model, same
from waiting import PATIENCE, main_is_in, when

SILENCE = 8.0
"""Seconds, in tests where a rank is gone. All others hear no silence, however busy the CPUs are."""


class Ranks:
    """Processes that are ranks of one job, which all run the same function: job(rank, size, *arguments)."""

    def __init__(self, size, job, *arguments):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            [
                "torch.distributed", "hbmfs.checkpoints.dcp", "safetensors.torch", "test_weights", "torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo",
                "frozen",
            ]
        )  # fmt: skip
        self.results, self.ports, self.over = context.Queue(), context.SimpleQueue(), context.Event()
        self.processes = [context.Process(target=run, args=(self.ports, rank, size, self.results, self.over, job, *arguments)) for rank in range(size)]
        for process in self.processes:
            process.start()

    def wait(self, ranks=None, patience=PATIENCE):
        """The results of the ranks: what the job returned, or the exception that it raised."""
        found, end = {}, time.monotonic() + patience
        wanted = set(range(len(self.processes)) if ranks is None else ranks)
        try:
            while wanted - found.keys():
                rank, result = self.results.get(timeout=max(end - time.monotonic(), 0.1))
                found[rank] = result
        except queue.Empty:
            pytest.fail(f"ranks {sorted(wanted - found.keys())} said nothing in {patience} s; the others: {found}")
        finally:
            self.over.set()
            for rank, process in enumerate(self.processes):
                process.join(10 if rank in found else 0)
                process.kill()
                process.join()
        return [found[rank] for rank in sorted(wanted)]


def run(ports, rank, size, results, over, job, *arguments):
    import torch.distributed as dist

    _load.SHARE, _transfer.REQUEST, _parts.BLOCK, _board.SILENCE = 40_000, 50_000, 300_000, PATIENCE
    _columns.SHARE = 75_000
    try:
        port = 0 if rank == 0 else ports.get()
        store = dist.TCPStore("127.0.0.1", port, size, rank == 0, wait_for_workers=False)
        for _ in range(0 if rank else size - 1):
            ports.put(store.port)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        result = job(rank, size, *arguments)
    except Exception as err:  # noqa: BLE001 (the result of a rank that fails)
        traceback.print_exc()
        result = err
    results.put((rank, result))
    results.close()
    results.join_thread()
    if rank == 0:
        over.wait(PATIENCE)  # the group's store goes with this process
    os._exit(0)  # gloo waits for ranks that are gone


def load(rank, size, path, expected, **options):
    found = hbmfs.load_safetensors(path, "cpu", group=torch.distributed.group.WORLD, **options)
    same(found, safetensors.torch.load_file(expected))
    return "same"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    safetensors.torch.save_file(random_model(7), path)
    return path


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_ranks_have_all(model, size):
    assert Ranks(size, load, model, model).wait() == ["same"] * size


def count(rank, size, path):
    """The bytes that this rank read, of two loads one after the other."""
    with hbmfs.Reader("cpu") as reader:
        for _ in range(2):
            load(rank, size, path, path, reader=reader)
        return sum(reader.stats()["bytes"].values())


def test_each_byte_is_read_once(model):
    payload = sum(tensor.nbytes for tensor in safetensors.torch.load_file(model).values())
    read = Ranks(3, count, model).wait()
    assert sum(read) == 2 * payload
    assert max(read) < 0.8 * payload


def many_files(folder, count):
    rng = np.random.default_rng(1)
    names = {}
    for number in range(count):
        tensors = {f"{number}.{i}": torch.from_numpy(rng.integers(0, 256, int(rng.integers(0, 3000)), np.uint8)) for i in range(5)}
        safetensors.torch.save_file(tensors, folder / f"{number:03}.safetensors")
        names |= dict.fromkeys(tensors, f"{number:03}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def load_directory(rank, size, folder):
    found = hbmfs.load_safetensors(folder, "cpu", group=torch.distributed.group.WORLD)
    expected = {}
    for path in sorted(folder.glob("*.safetensors")):
        expected |= safetensors.torch.load_file(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    return "same"


def test_many_small_files(tmp_path):
    (tmp_path / "model").mkdir()
    many_files(tmp_path / "model", 150)
    assert Ranks(3, load_directory, tmp_path / "model").wait() == ["same"] * 3


def halves(rank, size, path):
    """Groups inside of a larger job, as one for each node."""
    import torch.distributed as dist

    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    with hbmfs.Reader("cpu") as reader:
        found = hbmfs.load_safetensors(path, "cpu", group=mine, reader=reader)
        same(found, safetensors.torch.load_file(path))
        try:
            hbmfs.load_safetensors(path, "cpu", group=groups[1 - rank % 2])
        except hbmfs.GroupError:
            dist.barrier()  # the store ends with rank 0, and the other group may still ask it
            return sum(reader.stats()["bytes"].values())


def test_groups_inside_of_a_job(model):
    payload = sum(tensor.nbytes for tensor in safetensors.torch.load_file(model).values())
    read = Ranks(4, halves, model).wait()
    assert read[0] + read[2] == read[1] + read[3] == payload


def parts(rank, size, path, seed):
    """Random slices of every tensor: of all ranks alike, of some, of one."""
    expected, wants = safetensors.torch.load_file(path), {}
    for number, (name, tensor) in enumerate(expected.items()):
        alike = np.random.default_rng([seed, number])
        kind = alike.integers(4)
        mine = {0: alike, 1: np.random.default_rng([seed, number, rank]), 2: np.random.default_rng([seed, number, rank // 2])}.get(kind)
        if mine is None:
            continue
        if mine.integers(8) == 0:
            wants[name] = hbmfs.SKIP
            continue
        cuts = []
        for length in tensor.shape:
            begin, end = sorted(mine.integers(0, length + 1, 2).tolist())
            cuts.append(slice(begin, end, int(mine.integers(1, 4)) if mine.integers(3) == 0 else None))
        wants[name] = tuple(cuts)
    with hbmfs.Reader("cpu") as reader:
        group = torch.distributed.group.WORLD if size > 1 else None
        found = hbmfs.load_safetensors(path, "cpu", slices=wants, group=group, reader=reader)
        read = sum(reader.stats()["bytes"].values())
    same(
        found,
        {
            name: tensor[wants.get(name) or ...].clone(memory_format=torch.contiguous_format)
            for name, tensor in expected.items()
            if wants.get(name) is not hbmfs.SKIP
        },
    )
    assert read <= sum(tensor.nbytes for tensor in found.values())
    return "same"


@pytest.mark.parametrize(("size", "seed"), [(1, 1), (1, 2), (4, 3), (4, 4), (3, 5)])
def test_slices(model, size, seed):
    assert Ranks(size, parts, model, seed).wait() == ["same"] * size


def columns_of(rank, size, number, shape):
    """Columns of a matrix: equal parts, parts of other sizes that may overlap, of the middle dimension; all of it, nothing of it."""
    dimension, odd = (len(shape) // 2 if number % 3 == 2 else len(shape) - 1), number % 4
    begin, end = rank * shape[dimension] // size, (rank + 1) * shape[dimension] // size
    if odd == 1:
        begin, end = max(begin - 3, 0), min(end + rank, shape[dimension])
    elif odd == 2 and rank == 0:
        return None
    elif odd == 3 and rank == 1:
        return hbmfs.SKIP
    return tuple(slice(begin, end) if i == dimension else slice(None) for i in range(len(shape)))


def columns(rank, size, path, least):
    """The bytes that this rank read, of the files and of what it wants."""
    _columns.LEAST = least
    expected = safetensors.torch.load_file(path)
    wants = {name: columns_of(rank, size, number, tensor.shape) for number, (name, tensor) in enumerate(expected.items())}
    with hbmfs.Reader("cpu") as reader:
        found = hbmfs.load_safetensors(path, "cpu", slices=wants, group=torch.distributed.group.WORLD, reader=reader)
        read = sum(reader.stats()["bytes"].values())
    torch.distributed.barrier()  # rank 0, which may be done first, holds the store
    kept = {name: tensor for name, tensor in expected.items() if wants[name] is not hbmfs.SKIP}
    same(found, {name: tensor[wants[name] or ...].clone(memory_format=torch.contiguous_format) for name, tensor in kept.items()})
    return read, sum(tensor.nbytes for tensor in found.values())


def matrices(folder):
    """Matrices of odd and even widths, of one-byte to eight-byte elements, one without alignment; and tensors that are none."""
    rng = np.random.default_rng(2)
    shapes = [(100, 64), (333, 48), (7, 6, 40), (1000, 9), (64, 1024), (3, 5000), (2, 3, 4, 160), (77, 76), (20_000, 4), (50, 8192)]
    dtypes = [torch.bfloat16, torch.uint8, torch.float32, torch.int64, torch.float16]
    tensors = {}
    for number, shape in enumerate(shapes):
        dtype = dtypes[number % len(dtypes)]
        data = rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
        tensors[f"{number}"] = torch.from_numpy(data).view(dtype).view(shape)
    path = folder / "model.safetensors"
    safetensors.torch.save_file(tensors | {"odd": torch.zeros(1, 3, dtype=torch.uint8), "row": torch.arange(40).view(1, 40)}, path)
    return path


@pytest.mark.parametrize("size", [2, 3, 4])
def test_columns(tmp_path, size):
    path = matrices(tmp_path)
    payload = sum(tensor.nbytes for tensor in safetensors.torch.load_file(path).values())
    together, alone = Ranks(size, columns, path, 100).wait(), Ranks(size, columns, path, 1 << 30).wait()
    # Matrices of which too little is wanted, or in long runs, are read by the ranks that want them.
    assert sum(read for read, _ in together) <= 1.1 * payload
    assert max(read for read, _ in together) < 1.3 * payload / size
    assert all(read <= wanted for read, wanted in alone)
    assert [wanted for _, wanted in alone] == [wanted for _, wanted in together]


def test_windows_have_each_row_once():
    rng = np.random.default_rng(3)
    for ranks in (1, 2, 3, 7):
        list_of = [
            _columns.Matrix(0, 0, {0: _columns.Columns(int(rng.integers(2, 5000)), int(rng.integers(1, 9000)), 0, 1)}, None)
            for _ in range(int(rng.integers(1, 30)))
        ]
        seen = {id(matrix): 0 for matrix in list_of}
        for shares in _columns.windows(list_of, ranks):
            assert len(shares) == ranks
            for share in shares:
                at = 0
                for rows in share:
                    assert rows.first == seen[id(rows.matrix)] and rows.last > rows.first and rows.at == at
                    seen[id(rows.matrix)], at = rows.last, at + rows.length
                assert at < _columns.SHARE + 9000
        assert [seen[id(matrix)] for matrix in list_of] == [matrix.any.rows for matrix in list_of]


def columns_with(rank, size, path, other):
    """Rank 1 is given another file, or is killed while it reads."""
    _columns.LEAST = 100
    _board.SILENCE = PATIENCE if other else SILENCE
    wants = {name: (slice(None), slice(rank * 512 // size, (rank + 1) * 512 // size)) for name in ("0", "1", "2")}
    if other is None and rank == 1:
        begin, calls = _transfer.Transfer.then, []

        def stop(self, call):
            calls.append(0)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            begin(self, call)

        _transfer.Transfer.then = stop
    try:
        hbmfs.load_safetensors(other if rank == 1 and other else path, "cpu", slices=wants, group=torch.distributed.group.WORLD)
    except hbmfs.Error as err:
        return str(err)
    return "loaded"


def test_columns_with_a_rank_that_fails(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({str(number): torch.randint(0, 256, (600, 512), dtype=torch.uint8) for number in range(3)}, path)
    for text in Ranks(3, columns_with, path, None).wait([0, 2]):
        assert "rank 1 of the group (process" in text and "is gone: last seen" in text, text
    for rank, text in enumerate(Ranks(3, columns_with, path, tmp_path / "missing").wait()):
        assert "no file" in text and (rank == 1 or text.startswith("rank 1 of the group failed")), text


def test_slices_that_make_no_sense(model):
    for wants, reason in [
        ({"no such tensor": None}, "which is not loaded"),
        ({"torch.int16.1": (slice(0, 1),)}, "give 2 slices"),
        ({"torch.int16.1": slice(0, 1)}, "slices must be a mapping of a str to None or a list of a slice"),
        ({"torch.int16.1": (slice(None), slice(None, None, -1))}, "step of -1"),
        ({"torch.int16.1": (slice(None), 3)}, "slices must be a mapping of a str to None or a list of a slice"),
    ]:
        with pytest.raises(hbmfs.InvalidError, match=reason):
            hbmfs.load_safetensors(model, "cpu", slices=wants)


def fail(rank, size, path, other):
    """Rank 1 is given another file."""
    load(rank, size, path, path)  # the first call loads libraries, which keep descriptors
    before = descriptors()
    try:
        hbmfs.load_safetensors(other if rank == 1 else path, "cpu", group=torch.distributed.group.WORLD)
    except hbmfs.Error as err:
        left = left_open(before)
        torch.distributed.barrier()  # a rank that goes on connects to the store, which rank 0 holds
        # The group is as good as before.
        load(rank, size, path, path)
        return type(err).__name__, str(err), left
    return "loaded"


def descriptors():
    """What is open."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


def left_open(before):
    """What stays open of what was opened since, when what closes in other threads has been closed."""
    end = time.monotonic() + PATIENCE / 2
    while True:
        gc.collect()
        left = descriptors() - before
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.01)


def test_all_ranks_end_with_the_failure_of_one(tmp_path, model):
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(model.read_bytes()[:-1])
    for other, kind, reason in [(damaged, "FormatError", "damaged"), (tmp_path / "missing", "NotFoundError", "no file")]:
        results = Ranks(3, fail, model, other).wait()
        for rank, (name, text, left) in enumerate(results):
            assert name == kind and reason in text and not left, results
            assert rank == 1 or text.startswith("rank 1 of the group failed"), results


def test_ranks_that_see_other_files(tmp_path, model):
    other = tmp_path / "model.safetensors"
    safetensors.torch.save_file(random_model(8, ((3,), (33, 128))), other)
    results = Ranks(3, fail, model, other).wait()
    assert {name for name, *_ in results} == {"GroupError"} and all("do not see the same files" in text for _, text, *_ in results), results


def hang(rank, size, path, how, victim):
    """A rank stops while it reads."""
    _board.SILENCE = SILENCE
    if rank == victim:
        begin = _transfer.Transfer.then

        def stop(self, call):
            stop.calls += 1
            if stop.calls == 4:
                os.kill(os.getpid(), how)
            begin(self, call)

        stop.calls = 0
        _transfer.Transfer.then = stop
    try:
        hbmfs.load_safetensors(path, "cpu", group=torch.distributed.group.WORLD)
    except hbmfs.GroupError as err:
        return str(err)
    return "loaded"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone(model, how):
    for text in Ranks(3, hang, model, how, 1).wait([0, 2]):
        assert "rank 1 of the group (process" in text and "is gone: last seen" in text, text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_rank_that_holds_the_store_is_gone(model, how):
    for text in Ranks(3, hang, model, how, 0).wait([1, 2]):
        assert "rank 0 of the group (process" in text or "the group's store" in text, text


class Gone:
    """A store that goes while it is asked."""

    def __init__(self, asked):
        self.asked = asked

    def set(self, key, value):
        pass

    def check(self, keys):
        if keys[0].endswith("value"):
            self.asked.wait(PATIENCE)
            raise ConnectionError("reset by peer")
        return False


@pytest.mark.parametrize("wait", [lambda board: board.values(["value"], "say"), lambda board: board.agree("key", ["value"], lambda: False, "agree")])
def test_a_store_that_goes_answers_nothing(monkeypatch, wait):
    asked = threading.Event()
    monkeypatch.setattr(_board, "_own_store", lambda: Gone(asked))
    board = _board.Board("test/", 1, 2, 60.0, [], [])
    board.start()
    when(lambda: main_is_in("Board._wait", "Condition.wait"), asked.set)
    with pytest.raises(_board.Told, match="the group's store is gone, which rank 0 holds as a rule: reset by peer"):
        wait(board)
    board.close()


def late(rank, size, path):
    """Rank 1 comes when rank 0 has waited longer than a silence: the clock of the thread that looks for ranks jumps."""
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["waited"], datetime.timedelta(seconds=PATIENCE))
        return load(rank, size, path, path)
    looks, look = [], _board._Beats.look

    def looked(self):
        found = look(self)
        looks.append(found)
        if len(looks) == 2:
            store.set("waited", "")
        return found

    _board._Beats.look = looked

    def monotonic():
        return time.monotonic() + (2 * _board.SILENCE if looks and threading.current_thread().name == "hbmfs-group" else 0)

    _board.time = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    return load(rank, size, path, path)


def test_a_rank_may_come_late(model):
    assert Ranks(2, late, model).wait() == ["same"] * 2


def test_without_a_group(model):
    with pytest.raises(hbmfs.GroupError, match="init_process_group"):
        hbmfs.load_safetensors(model, "cpu", group=object())
