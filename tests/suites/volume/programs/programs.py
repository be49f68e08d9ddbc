"""Programs that save checkpoints, unmodified, into the checkpoint volume that the first argument names. The others say which ones. Each runs in a
process of its own, which is forked, so that torch is imported once. After each one comes a line: its name, and "ok", "failed", or "skip" and why it
cannot run here. What was saved is loaded again from the mount, after it was published."""

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
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
    """DeepSpeed's engine with ZeRO 2. It writes its latest, and a script, into the root beside the tags' directories."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    two_ranks(mount, deepspeed_rank, "tag*")
    assert (mount / "latest").read_text() == "tag4" and (mount / "zero_to_fp32.py").stat().st_size > 0


def deepspeed_rank(mount, loads, steps, who):
    import deepspeed

    def name(step):
        return f"tag{step}"

    def train():
        engine.backward(engine(torch.randn(2, 80).bfloat16()).float().pow(2).mean())
        engine.step()

    rank = join()
    torch.manual_seed(0)
    model = torch.nn.Linear(80, 40)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    if loads:
        train()
        path, client = engine.load_checkpoint(mount, tag=name(loads))
        assert path is not None and client["step"] == loads
        same(client["model"], engine.module.state_dict())
    # Rank 1 is killed before its file: nothing makes rank 0 wait for others between its own files and latest, which would publish what there is once all have ended.
    kill_in(who, (engine.checkpoint_engine, "create"), (engine.checkpoint_engine, "commit"))  # which comes before latest
    for step in steps:
        train()
        model_now = {key: value.clone() for key, value in engine.module.state_dict().items()}
        assert engine.save_checkpoint(mount, tag=name(step), client_state={"step": step, "model": model_now})
        if rank == 0 and step > 1:
            assert published(mount / name(step - 1)), "latest has not published the one before"
        rotated(mount, name, step, rank)


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
    except ImportError as missing:
        raise ImportError("transformers' Trainer needs accelerate") from missing
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


def ranks(program, *arguments):
    """Runs a function as two ranks, and gives how they ended. They are forked, so that the framework is imported once."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        started = []
        for rank in (1, 0):
            environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MEETING": f"{meeting}/store"}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "OTHER": str(started[0].pid) if started else ""}
            started.append(fork.Process(target=rank_main, args=(environment, program, *arguments)))
            started[-1].start()
        for process in started:
            process.join(240)
        for process in started:  # with processes that a killed rank has left
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.join()
        return [process.exitcode for process in reversed(started)]


def rank_main(environment, program, *arguments):
    os.setsid()
    os.environ |= environment
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    program(*arguments)


def join():
    """The process group of ranks, and the rank of this one."""
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.environ['MEETING']}", rank=rank, world_size=2)
    return rank


def two_ranks(mount, program, pattern):
    """Two ranks save; one or both are killed in the middle of a save; two others load, save again over what is left, and rotate. What was killed is never shown."""

    def found():
        return sorted(path.name for path in mount.glob(pattern) if published(path))

    def shown(*steps):
        # The last checkpoint that DeepSpeed's latest names is published soon after the processes that wrote it have ended.
        end = time.monotonic() + 60
        while (names := found()) and len(names) < len(steps) and time.monotonic() < end:
            time.sleep(0.02)
        assert [int("".join(filter(str.isdigit, name))) for name in names] == list(steps), (program.__name__, names)

    assert ranks(program, mount, 0, (1, 2), "nobody") == [0, 0]
    shown(1, 2)
    for who in ("one", "both"):
        ended = ranks(program, mount, 2, (3,), who)
        assert ended[1] == -9 and (ended[0] == -9 if who == "both" else ended[0] > 0), (program.__name__, who, ended)
        shown(1, 2)
    assert ranks(program, mount, 2, (3, 4), "nobody") == [0, 0]
    shown(3, 4)


def kill_in(who, written, last):
    """Has rank 1 be killed once it has written its part of a checkpoint, or rank 0 kill both before the last file. Each of written and last is an object and the
    name of a function of it."""
    rank = int(os.environ["RANK"])
    if who == "one" and rank == 1:
        module, name = written
        write = getattr(module, name)

        def then_die(*arguments, **options):
            result = write(*arguments, **options)
            if hasattr(result, "wait"):
                result.wait()
            os.kill(os.getpid(), 9)

        setattr(module, name, then_die)
    if who == "both" and rank == 0:

        def both(*_, **__):
            os.kill(int(os.environ["OTHER"]), 9)
            os.kill(os.getpid(), 9)

        setattr(*last, both)


def rotated(mount, name, step, rank):
    """Ends the save of a step as a training loop does: rank 0 removes the one before the one before."""
    torch.distributed.barrier()
    if rank == 0 and step > 2:
        shutil.rmtree(mount / name(step - 2), ignore_errors=True)
    torch.distributed.barrier()


def torchtitan(mount):
    """Its CheckpointManager, on two ranks of FSDP."""
    import torchtitan.components.checkpoint  # noqa: F401 (skips where it is not installed)

    two_ranks(mount, torchtitan_rank, "step-*")


def torchtitan_rank(mount, loads, steps, who):
    from torch.distributed.checkpoint import FileSystemWriter
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
    assert found == (loads != 0) and state.step == loads, (found, state.step)
    if found:
        assert torch.equal(model.weight.full_tensor(), torch.full((40, 80), float(loads)))
    kill_in(who, (FileSystemWriter, "write_data"), (FileSystemWriter, "finish"))
    for step in steps:
        state.step = step
        with torch.no_grad():
            model.weight.to_local().fill_(step)
        manager.save(step)
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


def published(path):
    return (path / ".hbmfs-manifest.json").exists()


def megatron(mount):
    """megatron-core's dist_checkpointing, and the tracker that Megatron's training loop writes."""
    import megatron.core.dist_checkpointing  # noqa: F401 (imported once for all ranks)

    two_ranks(mount, megatron_rank, "iter_*")
    assert (mount / "latest_checkpointed_iteration.txt").read_text() == "4"


def megatron_rank(mount, loads, steps, who):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor, serialization
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    def state(value):
        part = torch.full((32, 8), float(value + rank))
        return {"weight": ShardedTensor.from_rank_offsets("weight", part, (0, rank, 2), replica_id=0), "step": value}

    def name(step):
        return f"iter_{step:07d}"

    torch.cuda.synchronize, torch.cuda.current_device = lambda *_: None, lambda: "cpu"  # there is no GPU here
    rank = join()
    tracker = mount / "latest_checkpointed_iteration.txt"
    if loads:
        assert int(tracker.read_text()) == loads
        loaded = dist_checkpointing.load(state(0), str(mount / name(loads)))
        assert loaded["step"] == loads and torch.equal(loaded["weight"], torch.full((32, 8), float(loads + rank)))
    kill_in(who, (FileSystemWriterAsync, "retrieve_write_results"), (serialization, "save_config"))  # metadata.json comes after .metadata
    for step in steps:
        if rank == 0:
            (mount / name(step)).mkdir(exist_ok=True)
        torch.distributed.barrier()
        dist_checkpointing.save(state(step), str(mount / name(step)))
        assert not published(mount / name(step)), "something else than the tracker has published it"
        torch.distributed.barrier()
        if rank == 0:
            tracker.write_text(str(step))
        rotated(mount, name, step, rank)


def lightning(mount):
    """Fabric with the ModelParallel strategy, whose meta.pt comes after .metadata."""
    import lightning.fabric  # noqa: F401 (imported once for all ranks)

    two_ranks(mount, lightning_rank, "lightning-*")


def lightning_rank(mount, loads, steps, who):
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.fsdp import fully_shard

    def parallelize(model, mesh):
        return fully_shard(model, mesh=mesh["data_parallel"])

    def name(step):
        return f"lightning-{step}"

    rank = join()
    fabric = Fabric(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(parallelize, data_parallel_size=2, tensor_parallel_size=1))
    fabric.launch()
    with fabric.init_module(empty_init=False):
        module = torch.nn.Linear(80, 40)
    model = fabric.setup(module)
    state = {"model": model, "step": 0}
    if loads:
        fabric.load(mount / name(loads), state)
        assert state["step"] == loads and torch.equal(model.weight.full_tensor(), torch.full((40, 80), float(loads)))
    kill_in(who, (FileSystemWriter, "write_data"), (torch, "save"))
    for step in steps:
        with torch.no_grad():
            model.weight.to_local().fill_(step)
        fabric.save(mount / name(step), {"model": model, "step": step})
        torch.distributed.barrier()
        assert (mount / name(step) / "meta.pt").exists() and not published(mount / name(step))
        torch.distributed.barrier()
        if rank == 0:
            publish(mount / name(step))
        rotated(mount, name, step, rank)


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


def run(mount, program):
    """Runs a program as a fork of this process, and prints how it ended."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            globals()[program](mount)
            code = 0
        except ImportError as missing:
            print("== ", program, " skip: ", missing, sep="")
            code = SKIPPED
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != SKIPPED:
        print("== ", program, " ok" if code == 0 else " failed", sep="", flush=True)


SKIPPED = 77

if __name__ == "__main__":
    for program in sys.argv[2:]:
        run(Path(sys.argv[1]), program)
