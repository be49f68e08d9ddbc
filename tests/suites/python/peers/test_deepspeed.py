"""CheckpointEngine with the real DeepSpeed, on the CPU: what it writes, DeepSpeed's own engine reads, and the other way around."""

import os
import shutil
import types
import warnings

import hbmfs
import pytest
import torch
from hbmfs.checkpoints import _publishing
from test_dcp_group import ranks

warnings.filterwarnings("ignore", module="deepspeed|pydantic")


def initialize(seed, stage):
    """An engine of DeepSpeed after some steps. Its operator of C++ for the CPU's collectives is left out: it takes a minute to build."""
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": str(torch.distributed.get_rank())}
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(80, 160), torch.nn.ReLU(), torch.nn.Linear(160, 40))
    size = torch.distributed.get_world_size()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "train_batch_size": 2 * size,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": True},
        },
    )
    train(engine, seed)
    return engine


def train(engine, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(2):
        x = torch.randn(2, 80, generator=g).bfloat16()
        engine.backward(engine(x).float().pow(2).mean())
        engine.step()


def bits(value):
    """All that an engine has, as it can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {key: bits(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(inside) for inside in value]
    return value if isinstance(value, (int, float, str, bool)) else type(value).__name__


def everything(engine):
    return bits(engine.module.state_dict()), bits(engine.optimizer.state_dict()), engine.global_steps


def round_trips(rank, size, folder):
    """Each engine writes, and each reads what the other one wrote."""
    engine = initialize(1, 2)
    theirs, ours = engine.checkpoint_engine, hbmfs.deepspeed.CheckpointEngine()
    expected = everything(engine)
    for name, use in (("theirs", theirs), ("ours", ours)):
        engine.checkpoint_engine = use
        assert engine.save_checkpoint(folder / name, tag="one", client_state={"note": [1, "two"]})
    for name in ("theirs", "ours"):
        for use in (theirs, ours):
            train(engine, 5)
            assert everything(engine) != expected
            engine.checkpoint_engine = use
            path, client = engine.load_checkpoint(folder / name)
            assert path is not None and client["note"] == [1, "two"], (path, client)
            assert everything(engine) == expected, (name, use.name)
    engine.checkpoint_engine = ours
    assert engine.save_16bit_model(folder, "model.bin") and engine.save_16bit_model(folder, "model.bin")
    torch.distributed.barrier()  # rank 0 writes it
    assert bits(torch.load(folder / "model.bin", weights_only=True)) == expected[0]
    ours.close()
    return "same"


def test_round_trips(tmp_path):
    assert ranks(2, round_trips, tmp_path).wait(patience=120) == ["same"] * 2
    assert (tmp_path / "ours" / "latest").read_text() == "one"
    files = sorted(path.name for path in (tmp_path / "theirs" / "one").iterdir())
    there = tmp_path / "ours" / "one"
    assert sorted(path.name for path in there.iterdir() if not path.name.startswith(".")) == files and len(files) == 3
    assert _publishing.verify(there) == sum((there / name).stat().st_size for name in files)
    assert {entry.name for entry in _publishing.complete(tmp_path / "ours")} == {"one"}
    assert not [name for name in os.listdir(tmp_path) + os.listdir(tmp_path / "ours") if name.startswith(".")]


def failing(rank, size, folder):
    """Rank 1 cannot write. All ranks say why, nothing is there, and the next save works."""
    engine = initialize(1, 1)
    engine.checkpoint_engine = ours = hbmfs.deepspeed.CheckpointEngine()
    engine.save_checkpoint(folder, tag="one")
    write = ours._write
    if rank == 1:

        def full(*arguments):
            raise hbmfs.WriteError(28, "no space left on device")

        ours._write = full
    said = []
    for tag in ("two", "one"):
        try:
            engine.save_checkpoint(folder, tag=tag)
        except hbmfs.Error as err:
            said.append((type(err).__name__, str(err)))
        if rank == 0:
            said.append(sorted(name for name in os.listdir(folder) if not name.endswith(".py")))
        ours._write = write
    engine.save_checkpoint(folder, tag="three")
    latest = (folder / "latest").read_text()
    ours.close()
    return said, latest


def test_all_ranks_hear_of_a_failure(tmp_path):
    (zero, latest), (one, _) = ranks(2, failing, tmp_path).wait(patience=120)
    assert latest == "three"
    assert zero[0][0] == "WriteError" and "rank 1 of the group failed" in zero[0][1] and "no space" in zero[0][1]
    assert one[0][0] == "WriteError" and "no space" in one[0][1]
    assert zero[1] == zero[3] == ["latest", "one"]
    assert zero[2][0] == one[1][0] == "ExistsError" and "complete already" in zero[2][1]


def info(folder, tag):
    return types.SimpleNamespace(save_dir=str(folder), tag=tag, save_latest=True)


def test_a_process_alone(tmp_path):
    """The calls in DeepSpeed's order, without it."""
    engine = hbmfs.deepspeed.CheckpointEngine(device="cpu")
    state = {"module": {"w": torch.randn(3000), "b": torch.zeros(3).bfloat16()}, "step": 3, "tuple": (1, None)}
    engine.create(info(tmp_path, 7))
    engine.makedirs(str(tmp_path / "7"), exist_ok=True)
    engine.save(state, str(tmp_path / "7" / "model.pt"))
    engine.makedirs(str(tmp_path / "7"), exist_ok=True)
    engine.save([state], str(tmp_path / "7" / "zero.pt"))
    assert not (tmp_path / "7").exists() and (tmp_path / ".7.hbmfs.tmp").is_dir()
    assert engine.commit(info(tmp_path, 7))
    assert bits(engine.load(str(tmp_path / "7" / "model.pt"))) == bits(state)
    assert bits(torch.load(tmp_path / "7" / "zero.pt", weights_only=True)) == bits([state])
    engine.create(info(tmp_path, 8))
    engine.makedirs(str(tmp_path / "8"))
    engine.save(state, str(tmp_path / "8" / "model.pt"))
    engine.create(info(tmp_path, 9))  # 8 was given up
    engine.save(state, str(tmp_path / "alone.pt"))
    engine.save({"x": 1}, str(tmp_path / "alone.pt"))
    assert engine.commit(info(tmp_path, 9))
    assert sorted(os.listdir(tmp_path)) == ["7", "alone.pt"] and engine.load(str(tmp_path / "alone.pt")) == {"x": 1}
    with pytest.raises(Exception, match="pickle"):
        engine.save(lambda: 0, str(tmp_path / "bad.pt"))
    shutil.rmtree(tmp_path / "7")
    (tmp_path / "7").write_text("mine")
    engine.create(info(tmp_path, 7))
    engine.makedirs(str(tmp_path / "7"))
    engine.save(state, str(tmp_path / "7" / "model.pt"))
    with pytest.raises(hbmfs.ExistsError):
        engine.commit(info(tmp_path, 7))
    assert sorted(os.listdir(tmp_path)) == ["7", "alone.pt"]
    engine.close()
