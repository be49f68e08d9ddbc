"""Programs that save checkpoints, unmodified, into the checkpoint volume that the second argument names. The first says which one. It prints
"ok", or "skip" and why it cannot run here. What was saved is loaded again from the mount, after it was published."""

import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
warnings.filterwarnings("ignore")

import torch


def tensors(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {f"layer.{i}.weight": torch.randn(257, 64 + i, generator=g) for i in range(8)}


def same(a, b):
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    for name, value in a.items():
        assert torch.equal(value, b[name]), name


def publish(path):
    subprocess.run([os.environ["HBMFS_PROGRAM"], "publish", path], check=True, stdout=subprocess.DEVNULL)


def torch_save(mount):
    for form in (True, False):  # zip, and the older one
        draft, name = mount / f"torch-{form}.tmp", mount / f"torch-{form}"
        draft.mkdir()
        torch.save(tensors(), draft / "model.pt", _use_new_zipfile_serialization=form)
        os.rename(draft, name)
        same(tensors(), torch.load(name / "model.pt", mmap=form))


def dcp(mount):
    import torch.distributed.checkpoint as dcp

    for name, options in (("dcp", {}), ("dcp-threads", {"thread_count": 4, "single_file_per_rank": False})):
        dcp.save(tensors(), storage_writer=dcp.FileSystemWriter(mount / name, **options))
        (mount / name / "config.json").write_text("{}")  # as programs around it do
        publish(mount / name)
        state = {name: torch.empty_like(value) for name, value in tensors().items()}
        dcp.load(state, storage_reader=dcp.FileSystemReader(mount / name))
        same(tensors(), state)
        assert (mount / name / ".hbmfs-manifest.json").exists(), "it is not published"
    try:
        dcp.save(tensors(1), storage_writer=dcp.FileSystemWriter(mount / "dcp"))
    except dcp.api.CheckpointException as error:  # which is no Exception
        assert "ead-only" in str(error), error
    else:
        raise AssertionError("a published checkpoint was overwritten")
    future = dcp.async_save(tensors(2), storage_writer=dcp.FileSystemWriter(mount / "dcp-async"))
    future.result()
    publish(mount / "dcp-async")
    state = {name: torch.empty_like(value) for name, value in tensors().items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(mount / "dcp-async"))
    same(tensors(2), state)


def safetensors(mount):
    from safetensors.torch import load_file, save_file

    draft, name = mount / "safe.tmp", mount / "safe"
    draft.mkdir()
    save_file(tensors(), draft / "model.safetensors")
    os.rename(draft, name)
    same(tensors(), load_file(name / "model.safetensors"))
    views = mount / ".hbmfs" / "views" / "safe"
    assert any(views.rglob("layer.0.weight*")), "it has no views"


def deepspeed(mount):
    group()
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(0)
    model = torch.nn.Linear(80, 40)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.randn(2, 80).bfloat16()).float().pow(2).mean())
    engine.step()
    before = {name: value.clone() for name, value in engine.module.state_dict().items()}
    # Beside the tag's directory it writes latest, and its script, into the root.
    assert engine.save_checkpoint(mount, tag="one", client_state={"note": 1})
    publish(mount / "one")
    assert (mount / "latest").read_text() == "one" and (mount / "zero_to_fp32.py").stat().st_size > 0
    engine.backward(engine(torch.randn(2, 80).bfloat16()).float().pow(2).mean())
    engine.step()
    path, client = engine.load_checkpoint(mount)
    assert path is not None and client["note"] == 1
    same(before, engine.module.state_dict())
    assert engine.save_checkpoint(mount, tag="two") and not published(mount / "two")
    assert engine.save_checkpoint(mount, tag="three") and published(mount / "two"), "latest has not published it"
    path, _ = engine.load_checkpoint(mount, tag="two")
    assert path is not None
    shutil.rmtree(mount / "two", ignore_errors=True)
    assert published(mount / "three") and not (mount / "two").exists()


def transformers(mount):
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=128, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    draft, name = mount / "pretrained.tmp", mount / "pretrained"
    model.save_pretrained(draft)
    os.rename(draft, name)
    again = transformers.GPT2LMHeadModel.from_pretrained(name)
    same(model.state_dict(), again.state_dict())


def trainer(mount):
    try:
        import accelerate  # noqa: F401
    except ImportError:
        print("skip: transformers' Trainer needs accelerate")
        sys.exit(0)
    import transformers

    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=128, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": torch.arange(i, i + 8), "labels": torch.arange(i, i + 8)} for i in range(8)]

    class Publishing(transformers.TrainerCallback):
        """What a user adds: each checkpoint is published once it is saved."""

        def on_save(self, args, state, control, **_):
            publish(mount / f"checkpoint-{state.global_step}")

    arguments = transformers.TrainingArguments(
        output_dir=mount, max_steps=3, save_steps=1, save_total_limit=1, per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True
    )
    it = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Publishing()])
    it.train()
    # Rotation removes each published one as a whole: rmtree(ignore_errors=True) ends with rmdir.
    assert [p.name for p in mount.glob("checkpoint-*")] == ["checkpoint-3"], list(mount.iterdir())
    again = transformers.GPT2LMHeadModel.from_pretrained(mount / "checkpoint-3")
    same(it.model.state_dict(), again.state_dict())
    transformers.Trainer(model=again, args=arguments, train_dataset=data).train(resume_from_checkpoint=str(mount / "checkpoint-3"))


def ranks(program, mount, *arguments):
    """Runs a program as two ranks, and gives how they ended."""
    with tempfile.TemporaryDirectory() as meeting:
        started = []
        for rank in range(2):
            environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MEETING": f"{meeting}/store"}
            started.append(subprocess.Popen([sys.executable, __file__, program, mount, *map(str, arguments)], env=environment, stdout=subprocess.DEVNULL))
        return [process.wait(timeout=240) for process in started]


def join():
    """The process group of ranks, and the rank of this one."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
    return rank


def torchtitan(mount):
    """Its CheckpointManager, on two ranks of FSDP: saves, is killed within a save, loads, saves again over what is left, and rotates."""
    import torchtitan.components.checkpoint  # noqa: F401 (skips where it is not installed)

    steps = lambda: sorted(path.name for path in mount.glob("step-*") if published(path))  # noqa: E731
    assert ranks("torchtitan_rank", mount, 0, 1, 2) == [0, 0] and steps() == ["step-1", "step-2"], steps()
    ended = ranks("torchtitan_rank", mount, 2, "killed")
    assert ended[1] == -9 and ended[0] != 0 and steps() == ["step-1", "step-2"], (ended, steps())
    assert ranks("torchtitan_rank", mount, 2, 3, 4) == [0, 0] and steps() == ["step-3", "step-4"], steps()


def torchtitan_rank(mount, loads, *steps):
    """Loads the newest step and compares its number, then saves some. One that is killed is in the middle of a save."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager

    rank = join()
    model = fully_shard(torch.nn.Linear(80, 40), mesh=init_device_mesh("cpu", (2,)))
    state = State()
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=1, folder=mount.name, keep_latest_k=2, last_save_model_only=False),
        dataloader=State(), model_parts=[model], optimizers=State(), lr_schedulers=State(), states={"train_state": state}, sd_adapter=None, base_folder=str(mount.parent),
    )  # fmt: skip
    found = manager.load()
    assert found == (loads != "0") and state.step == int(loads), (found, state.step)
    if found:
        assert torch.equal(model.weight.full_tensor(), torch.full((40, 80), float(loads)))
    for step in steps:
        if step == "killed" and rank == 1:
            dcp_write = torch.distributed.checkpoint.FileSystemWriter.write_data
            torch.distributed.checkpoint.FileSystemWriter.write_data = lambda *a: (dcp_write(*a).wait(), os.kill(os.getpid(), 9))
        state.step = 3 if step == "killed" else int(step)
        with torch.no_grad():
            model.weight.to_local().fill_(state.step)
        manager.save(state.step)
        torch.distributed.barrier()
        if rank == 0:
            publish(mount / f"step-{step}")
        torch.distributed.barrier()
    manager.close()  # which ends its rotation


class State:
    """What beside the model is saved."""

    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


def group():
    """A process group of this process alone."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def published(path):
    return (path / ".hbmfs-manifest.json").exists()


def megatron_save(mount, step):
    """What Megatron's training loop does, up to its tracker."""
    from megatron.core import dist_checkpointing

    torch.cuda.synchronize, torch.cuda.current_device = lambda *_: None, lambda: "cpu"  # there is no GPU here
    path = mount / f"iter_{step:07d}"
    path.mkdir(exist_ok=True)
    dist_checkpointing.save(megatron_state(step), str(path))
    assert (path / ".metadata").exists() and (path / "metadata.json").exists() and not published(path)
    return path


def megatron_state(value):
    from megatron.core.dist_checkpointing import ShardedTensor

    return {"weight": ShardedTensor.from_rank_offsets("weight", torch.full((64, 8), float(value)), replica_id=0), "step": value}


def megatron(mount):
    group()
    from megatron.core import dist_checkpointing

    tracker = mount / "latest_checkpointed_iteration.txt"
    for step in (1, 2):
        path = megatron_save(mount, step)
        tracker.write_text(str(step))
        assert published(path), "the tracker has not published it"
    killed = subprocess.run([sys.executable, __file__, "megatron_killed", mount], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=240)
    assert killed.returncode == -9 and not published(mount / "iter_0000003"), killed
    state = dist_checkpointing.load(megatron_state(0), str(mount / f"iter_{int(tracker.read_text()):07d}"))
    assert state["step"] == 2 and torch.equal(state["weight"], torch.full((64, 8), 2.0))
    path = megatron_save(mount, 3)  # once more, over what the killed one left
    tracker.write_text("3")
    state = dist_checkpointing.load(megatron_state(0), str(path))
    assert state["step"] == 3 and torch.equal(state["weight"], torch.full((64, 8), 3.0))
    shutil.rmtree(mount / "iter_0000001", ignore_errors=True)
    assert sorted(p.name for p in mount.glob("iter_*")) == ["iter_0000002", "iter_0000003"]


def megatron_killed(mount):
    """Is killed before it writes the tracker."""
    group()
    megatron_save(mount, 3)
    os.kill(os.getpid(), 9)


def lightning(mount):
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    def parallelize(model, mesh):
        return fully_shard(model, mesh=mesh["data_parallel"])

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    fabric = Fabric(accelerator="cpu", devices=1, strategy=ModelParallelStrategy(parallelize, data_parallel_size=1, tensor_parallel_size=1))
    fabric.launch()
    with fabric.init_module(empty_init=False):
        module = torch.nn.Linear(80, 40)
    model = fabric.setup(module)
    saved = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
    for step in (1, 2):
        fabric.save(mount / f"lightning-{step}", {"model": model, "step": step})  # which ends with meta.pt
        assert (mount / f"lightning-{step}" / "meta.pt").exists()
        publish(mount / f"lightning-{step}")
    with torch.no_grad():
        model.weight.zero_()
    state = {"model": model, "step": 0}
    fabric.load(mount / "lightning-2", state)
    assert state["step"] == 2
    same(saved, {name: value.full_tensor() for name, value in model.state_dict().items()})
    shutil.rmtree(mount / "lightning-1", ignore_errors=True)
    assert [p.name for p in mount.glob("lightning-*")] == ["lightning-2"]


def numpy(mount):
    import numpy as np

    draft, name = mount / "numpy.tmp", mount / "numpy"
    draft.mkdir()
    array = np.lib.format.open_memmap(draft / "array.npy", mode="w+", dtype=np.float32, shape=(1000, 100))
    array[:] = np.arange(100000, dtype=np.float32).reshape(1000, 100)
    array.flush()
    try:
        os.rename(draft, name)
    except OSError as error:
        assert error.errno == 16, error
    else:
        raise AssertionError("a draft was published whose file is mapped for writing")
    del array
    os.rename(draft, name)
    read = np.load(name / "array.npy", mmap_mode="r")
    assert read[999, 99] == 99999


def shell(mount):
    source = mount.parent / "tree"
    for i in range(20):
        (source / f"d{i % 3}").mkdir(parents=True, exist_ok=True)
        (source / f"d{i % 3}" / f"f{i}").write_bytes(os.urandom(i * 1000))
    for how, words in (("cp", ["cp", "-a"]), ("rsync", ["rsync", "-a"]), ("tar", None)):
        if how == "rsync" and shutil.which("rsync") is None:
            continue
        draft = mount / f"{how}.tmp"
        if words:
            subprocess.run([*words, f"{source}/", draft], check=True)
        else:
            draft.mkdir()
            subprocess.run(f"tar -C {source} -c . | tar -C {draft} -x", shell=True, check=True)
        os.rename(draft, mount / how)
        subprocess.run(["diff", "-r", "--exclude=.hbmfs-manifest.json", source, mount / how], check=True)


def past(mount):
    """hbmfs's own readers read what is published past FUSE."""
    import hbmfs
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    (mount / "past.tmp").mkdir()
    big = {"weight": torch.arange(4 << 20, dtype=torch.float32)}
    save_file(big, mount / "past.tmp" / "model.safetensors")
    os.rename(mount / "past.tmp", mount / "past")
    dcp.save(big, storage_writer=dcp.FileSystemWriter(mount / "past-dcp"))
    publish(mount / "past-dcp")
    before = reads(mount)
    same(big, {name: value.cpu() for name, value in hbmfs.load_safetensors(mount / "past" / "model.safetensors", device="cpu").items()})
    state = {"weight": torch.empty(4 << 20)}
    dcp.load(state, storage_reader=hbmfs.DCPReader(mount / "past-dcp"))
    same(big, state)
    clients = reads(mount)
    assert clients > before, "nobody read past FUSE"


def reads(mount):
    import json

    control = json.loads((mount / ".hbmfs" / "status").read_text())["control"]
    return control["tickets_issued"] + sum(sum(c["bytes"].values()) for c in control["clients"])


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    except ImportError as missing:
        print("skip:", missing)
    else:
        print("ok")
