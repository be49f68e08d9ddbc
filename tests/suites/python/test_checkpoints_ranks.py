"""Checkpoints of several ranks, on one node and on nodes with disks of their own."""

import itertools
import os
import random
import signal
import threading
import time
import warnings

import hbmfs
import pytest
import torch
from hbmfs.checkpoints import _publishing
from hbmfs.checkpoints import Checkpoints
from long import LONG
from test_checkpoints_ended import NEVER, RATE
from test_dcp_group import local, ranks, same
from waiting import PATIENCE, until


def split(seed, size, scale=1):
    """A state of which each rank has a part: some of it split, some of it everywhere."""
    from test_dcp_group import split as as_ranks_have_it

    g = torch.Generator().manual_seed(seed)
    tensors = {kind: {f"{i}": torch.randn(64 * scale, 40, generator=g) for i in range(3)} for kind in ("fsdp", "ddp", "tp")}
    return {kind: {name: as_ranks_have_it(kind, tensor, size) for name, tensor in named.items()} for kind, named in tensors.items()} | {"step": seed}


def together(ck, size, step=None, scale=1):
    found = split(1000, size, scale)
    at = ck.load(found, step)
    same(local(found), local(split(at, size, scale)))
    return at


def directory(folder, rank, nodes, size):
    return folder / f"node-{rank * nodes // size}" if nodes > 1 else folder


def several(rank, size, folder, nodes):
    where = directory(folder, rank, nodes, size)
    with Checkpoints(where, 2, node_local=nodes > 1) as ck:
        assert ck.latest() is None
        for step in (1, 2, 3):
            ck.save(step, split(step, size))
        ck.wait()
        assert ck.steps() == [2, 3] and together(ck, size) == 3 and together(ck, size, 2) == 2
        try:
            ck.load(split(0, size), 2 + rank % 2)
        except hbmfs.GroupError as err:
            assert "the ranks load different steps" in str(err)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = ck.save(4 + rank % 2, split(4, size)).exception(60)
            assert isinstance(error, hbmfs.GroupError) and "the ranks save different steps" in str(error), error
            error = ck.save(3, split(4, size)).exception(60)
            assert isinstance(error, hbmfs.ExistsError), error
            error = ck.save(6, split(4, size) | ({"bad": threading.Lock()} if rank == size - 1 else {})).exception(60)
            assert error is not None and (rank == size - 1 or f"rank {size - 1} of the group failed" in str(error)), error
        ck.save(7, split(7, size)).wait(60)
        assert ck.steps() == [3, 7] and together(ck, size) == 7
    return sorted(os.listdir(where))


@pytest.mark.parametrize("nodes", [1, 2])
def test_several_ranks(folder, nodes):
    assert ranks(4, several, folder, nodes).wait() == [["step-3", "step-7"]] * 4
    for where in [folder] if nodes == 1 else [folder / "node-0", folder / "node-1"]:
        for number, entry in enumerate(_publishing.complete(where)):
            _publishing.verify(entry.path)
            assert entry.parts == nodes


def too_much(rank, size, folder):
    """One rank cannot have its memory."""
    try:
        Checkpoints(folder, memory=1 << 44 if rank == 1 else 1 << 20)
    except hbmfs.OutOfMemoryError as err:
        return str(err)
    return "opened"


def test_all_ranks_hear_of_missing_memory(folder):
    zero, one = ranks(2, too_much, folder).wait()
    assert "give the writer less memory" in one and "rank 1 of the group failed: " in zero, (zero, one)


def save_some(rank, size, folder, nodes, steps):
    with Checkpoints(directory(folder, rank, nodes, size), None, node_local=True) as ck:
        for step in steps:
            ck.save(step, split(step, size)).wait(60)
        return ck.steps()


def look(rank, size, folder, nodes):
    where = directory(folder, rank, nodes, size)
    with Checkpoints(where, None, node_local=True) as ck:
        before = ck.steps(), together(ck, size)
        ck.save(5, split(5, size)).wait(60)  # of which one node had its part
        return *before, ck.steps(), together(ck, size)


def test_a_part_that_is_missing(folder):
    """The newest step is the one that all nodes have; a step that only some have can be saved again."""
    ranks(4, save_some, folder, 2, [1, 3, 5]).wait()
    _publishing.remove(folder / "node-1" / "step-5")
    assert ranks(4, look, folder, 2).wait() == [([1, 3], 3, [1, 3, 5], 5)] * 4


def test_fewer_nodes(folder):
    """A job of another number of nodes has none of these, and leaves them alone."""
    ranks(4, save_some, folder, 2, [1, 3]).wait()
    assert ranks(2, save_some, folder, 1, [4]).wait() == [[4]] * 2
    assert sorted(os.listdir(folder / "node-0")) == ["step-1", "step-3"]


def go_on(rank, size, folder, nodes, ready):
    with Checkpoints(directory(folder, rank, nodes, size), 3, node_local=nodes > 1, rate=RATE, deadline=NEVER) as ck, ck.on_preemption():
        latest = ck.latest()
        if latest is not None:
            assert together(ck, size, scale=20) == latest
        torch.distributed.barrier()
        (ready / f"{rank}").write_text(f"{-1 if latest is None else latest} {os.getpid()}")
        for step in itertools.count(0 if latest is None else latest + 1):
            save = ck.save(step, split(step, size, 20))
            if step % 3 == 0 and save.exception(60) is not None:
                break
    return "a save failed"


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_that_are_ended(folder, tmp_path, nodes, number):
    """All at about the same time, or one of them: the next job's ranks agree on a step that is complete, and no older than before."""
    chance, before = random.Random(f"{number} {nodes}"), -1
    for round in range(6 if LONG else 3):
        ready = tmp_path / f"ready-{round}"
        ready.mkdir()
        job = ranks(4, go_on, folder, nodes, ready)
        until(lambda ready=ready: len([file for file in ready.iterdir() if " " in file.read_text()]) == 4)
        found = {int(file.read_text().split()[0]) for file in ready.iterdir()}
        assert len(found) == 1 and found.pop() >= before, found
        before = int((ready / "0").read_text().split()[0])
        until(lambda round=round: round or all(_publishing.complete(directory(folder, rank, nodes, 4)) for rank in (0, 3)))
        time.sleep(chance.uniform(0, 0.8))
        for process in [job.processes[chance.randrange(4)]] if round == 2 else job.processes:
            os.kill(process.pid, number)
        if round == 2:
            job.over.set()
            job.processes[0].join(20)
        for process in job.processes:
            process.join(0 if round == 2 else PATIENCE)
            assert round == 2 or process.exitcode == -number, process.exitcode
            process.kill()
            process.join()
    assert before >= 0
