"""Checkpoints out of HBM: how long training is held, when they are safe, and what they cost it. DCPWriter beside its peers.

    dcp_save.py [--gb 15.7] [--to DIR ...] [--saves 3] [--only NAMES] [--steps 20] [--seconds 330] [--json FILE] [--cpu]
    torchrun --nproc-per-node 4 tests/bench/gpu/dcp_save.py --gb 16 --only ours,sync --steps 0

The state is that of a module with the shapes of Llama 8B, in bfloat16. *held* is how long the call kept the caller, until tensors
may change; *safe*, from the call to its end on storage. Each saver saves three times: torch's pinned stagers are made anew for each save.
Right after async_save returns, all tensors change. The last checkpoint of ours is loaded by torch's reader and by DCPReader,
and every tensor compared bit by bit. Then a transformer trains for 20 steps without a save, and beside one until that is safe. With torchrun, all
ranks save at once, each a state of its own, and figures are those of the slowest.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
import warnings

import hbmfs
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from plain_file import write_plainly
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

MIB = 1 << 20
START = time.monotonic()


class Llama(torch.nn.Module):
    """Weights in the shapes of Llama 3 8B, with as many layers as make so many bytes."""

    def __init__(self, size, width, device):
        super().__init__()
        small, wide = width // 4, width * 7 // 2
        shapes = {
            "q": (width, width),
            "k": (small, width),
            "v": (small, width),
            "o": (width, width),
            "gate": (wide, width),
            "up": (wide, width),
            "down": (width, wide),
        }
        shapes |= {"attention_norm": (width,), "mlp_norm": (width,)}
        layer = sum(torch.Size(shape).numel() for shape in shapes.values()) * 2
        count = max(round(size / (layer * 1.14)), 1)
        words = max(int((size - count * layer) / 4 / width), 8)

        def empty(*shape):
            return torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device=device).normal_())

        self.embedding, self.head = empty(words, width), empty(words, width)
        self.layers = torch.nn.ModuleList(torch.nn.ParameterDict({name: empty(*shape) for name, shape in shapes.items()}) for _ in range(count))


def nbytes(state):
    return sum(tensor.nbytes for tensor in state.values())


class Run:
    """The state, the device, and what all ranks agree on."""

    def __init__(self, args):
        self.args = args
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = "cpu" if args.cpu else f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"
        if not args.cpu:
            torch.cuda.set_device(self.device)
        if self.size > 1:
            dist.init_process_group("gloo" if args.cpu else "cpu:gloo,cuda:nccl")
        torch.manual_seed(self.rank)
        self.state = {f"rank{self.rank}.{name}": tensor.detach() for name, tensor in Llama(args.gb * 1e9, args.width, self.device).state_dict().items()}
        self.bytes = nbytes(self.state)
        self.options = {"no_dist": self.size == 1}
        self.rows = []

    def synchronize(self):
        if not self.args.cpu:
            torch.cuda.synchronize()

    def barrier(self):
        self.synchronize()
        if self.size > 1:
            dist.barrier(device_ids=None if self.args.cpu else [torch.cuda.current_device()])

    def slowest(self, value):
        found = [value]
        if self.size > 1:
            found = [None] * self.size
            dist.all_gather_object(found, value)
        return max(found)

    def change(self):
        """What the next step of training would do."""
        for tensor in self.state.values():
            tensor.neg_()

    def say(self, *words):
        if self.rank == 0:
            print(f"[{time.monotonic() - START:5.0f} s]", *words, flush=True)

    def late(self):
        return self.slowest(time.monotonic() - START) > self.args.seconds


def cpu_seconds():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


class Saver:
    """save() gives (held, staged, safe) in seconds from the call."""

    def __init__(self, run):
        self.run = run

    def finish(self, start, held, result=None, staged=None):
        self.run.change()
        self.run.synchronize()
        if result is None:
            return held, held, held
        result()
        return held, held if staged is None else staged, time.perf_counter() - start

    def close(self):
        pass


class Ours(Saver):
    """DCPWriter + DCPStager"""

    def __init__(self, run):
        super().__init__(run)
        start = time.perf_counter()
        self.stager = hbmfs.DCPStager(int(run.bytes * 1.01) + (64 << 20), device=run.device)
        opened = time.perf_counter() - start
        self.stager.writer.wait_ready()
        run.say(f"memory of {run.bytes / 1e9:.1f} GB pinned in {time.perf_counter() - start:.2f} s, opened in {opened:.3f} s")

    def save(self, path):
        start = time.perf_counter()
        future = dcp.async_save(self.run.state, storage_writer=hbmfs.DCPWriter(path, writer=self.stager.writer), async_stager=self.stager, **self.run.options)
        return self.finish(start, time.perf_counter() - start, future.result)

    def close(self):
        self.run.say("writer:", self.stager.writer.stats())
        self.stager.close()


class OursSync(Saver):
    """dcp.save, DCPWriter"""

    def save(self, path):
        start = time.perf_counter()
        dcp.save(self.run.state, storage_writer=hbmfs.DCPWriter(path, device=self.run.device), **self.run.options)
        return self.finish(start, time.perf_counter() - start)


class Torch(Saver):
    """dcp.save"""

    def save(self, path):
        start = time.perf_counter()
        dcp.save(self.run.state, storage_writer=dcp.FileSystemWriter(path), **self.run.options)
        return self.finish(start, time.perf_counter() - start)


class TorchAsync(Saver):
    """dcp.async_save"""

    options = None

    def save(self, path):
        start = time.perf_counter()
        stager = DefaultStager(StagingOptions(*self.options)) if self.options else None
        found = dcp.async_save(self.run.state, storage_writer=dcp.FileSystemWriter(path), async_stager=stager, **self.run.options)
        held, staged = time.perf_counter() - start, None
        if hasattr(found, "staging_completion"):
            found.staging_completion.result()
            staged, found = time.perf_counter() - start, found.upload_completion
        return self.finish(start, held, found.result, staged)


class TorchPinned(TorchAsync):
    """dcp.async_save, pinned stager"""

    options = (True, False, False, True)


class TorchPinnedAsync(TorchAsync):
    """dcp.async_save, pinned async stager"""

    options = (True, False, True, True)


class Nvrx(Saver):
    """NVRx FileSystemWriterAsync"""

    # As 0.7.0 is fastest: a worker that was started before, and tensors that it knows by CUDA IPC. If it dies, its queue waits forever.

    def __init__(self, run):
        super().__init__(run)
        from nvidia_resiliency_ext.checkpointing.async_ckpt import core, filesystem_async, state_dict_saver

        self.core, self.filesystem, self.saver = core, filesystem_async, state_dict_saver
        if not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl", init_method="tcp://127.0.0.1:29571", rank=0, world_size=1)
        start = time.perf_counter()
        core.AsyncCallsQueue.warmup_persistent_caller(run.rank)
        self.queue = core.AsyncCallsQueue()
        run.say(f"NVRx's worker started in {time.perf_counter() - start:.2f} s")

    def save(self, path):
        start = time.perf_counter()
        os.makedirs(path, exist_ok=True)
        writer = self.filesystem.FileSystemWriterAsync(path, thread_count=4, use_cached_data_structure=True)
        planned = self.saver.save_state_dict_async_plan(self.run.state, writer, None, 0, planner=dcp.DefaultSavePlanner())
        function, preload, arguments = writer.get_save_function_and_args()
        done = [lambda: self.saver.save_state_dict_async_finalize(*planned)]
        self.queue.schedule_async_request(self.core.AsyncRequest(function, arguments, done, preload_fn=preload))
        return self.finish(start, time.perf_counter() - start, lambda: self.queue.maybe_finalize_async_calls(blocking=True))

    def close(self):
        self.queue.close()


class DeepSpeed(Saver):
    """torch.save, DeepSpeed FastFileWriter"""

    def __init__(self, run):
        super().__init__(run)
        from deepspeed.io import FastFileWriter, FastFileWriterConfig
        from deepspeed.ops.op_builder import AsyncIOBuilder

        handle = AsyncIOBuilder().load(verbose=False).aio_handle(MIB, 32, False, True, 8)
        pinned = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
        self.make = lambda path: FastFileWriter(
            file_path=path,
            config=FastFileWriterConfig(dnvme_handle=handle, pinned_tensor=pinned, double_buffer=True, num_parallel_writers=1, writer_rank=0, global_rank=0),
        )

    def save(self, path):
        start = time.perf_counter()
        os.makedirs(path, exist_ok=True)
        writer = self.make(os.path.join(path, "state.pt"))
        torch.save(self.run.state, f=writer, _use_new_zipfile_serialization=False)
        writer.close()
        return self.finish(start, time.perf_counter() - start)


SAVERS = {
    "ours": Ours,
    "sync": OursSync,
    "async": TorchAsync,
    "pinned": TorchPinned,
    "pinned-async": TorchPinnedAsync,
    "torch": Torch,
    "nvrx": Nvrx,
    "deepspeed": DeepSpeed,
}


def measure(run, name, directory):
    """A row of the table, and the last checkpoint, which stays for ours."""
    try:
        saver = SAVERS[name](run)
    except (ImportError, OSError, RuntimeError) as err:
        run.say(f"{name}: not here: {str(err).splitlines()[0]}")
        return
    what, times, cpu = SAVERS[name].__doc__, [], []
    try:
        for number in range(run.args.saves):
            path = os.path.join(directory, f"{name}-{number}")
            run.barrier()
            before = cpu_seconds()
            held, staged, safe = saver.save(path)
            cpu.append(cpu_seconds() - before)
            times.append([run.slowest(value) for value in (held, staged, safe)])
            run.say(f"{what} to {directory}, save {number + 1}: held {times[-1][0]:.3f} s, staged {times[-1][1]:.3f} s, safe {times[-1][2]:.2f} s")
            run.barrier()
            if name == "ours" and number == run.args.saves - 1 and not run.args.quick:
                check(run, path)
            if run.rank == 0:
                shutil.rmtree(path)
            if run.late():
                break
        run.rows.append(
            {"what": what, "to": directory, "first": times[0], "last": times[-1], "saves": len(times), "cpu": statistics.mean(cpu) / run.bytes * 1e9}
        )
    except Exception as err:
        if name in ("ours", "sync") or run.size > 1:
            raise
        run.say(f"{what}: failed: {type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}")
    finally:
        saver.close()


def check(run, path):
    """Loads the checkpoint by torch's reader and by ours. It has what the state was before the last change."""
    run.change()
    run.synchronize()
    for reader in (hbmfs.DCPReader, dcp.FileSystemReader):
        found = {name: torch.zeros_like(tensor) for name, tensor in run.state.items()}
        start = time.perf_counter()
        dcp.load(found, storage_reader=reader(path), **run.options)
        run.synchronize()
        took = time.perf_counter() - start
        for name, tensor in run.state.items():
            assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), (reader, name)
        run.say(f"{reader.__name__}: {len(found)} tensors, the same bits, in {took:.2f} s")


def plain(run, directory):
    """The walls: pinned copies of the state by all ranks at once, and a plain writer of host memory to the directory."""
    pinned = {name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=not run.args.cpu) for name, tensor in run.state.items()}
    taken = []
    for _ in range(4):
        run.barrier()
        start = time.perf_counter()
        for name, tensor in run.state.items():
            pinned[name].copy_(tensor, non_blocking=True)
        run.synchronize()
        taken.append(run.slowest(time.perf_counter() - start))
    run.rows.append({"what": "plain copies into pinned memory", "to": "memory", "first": [taken[0]] * 3, "last": [min(taken[1:])] * 3, "saves": 4, "cpu": 0})
    run.say(f"plain pinned copies: {min(taken[1:]):.3f} s, {run.bytes / min(taken[1:]) / 1e9:.1f} GB/s for each of {run.size}")
    for target in [] if run.args.quick else directory:
        run.barrier()
        start = time.perf_counter()
        path = os.path.join(target, f"plain-{run.rank}")
        write_plainly(path, [memoryview(tensor.view(torch.uint8).flatten().numpy()) for tensor in pinned.values()])
        took = run.slowest(time.perf_counter() - start)
        os.unlink(path)
        run.rows.append({"what": "plain writer, host memory", "to": target, "first": [took] * 3, "last": [took] * 3, "saves": 1, "cpu": 0})
        run.say(f"plain writer to {target}: {took:.2f} s, {run.bytes * run.size / took / 1e9:.2f} GB/s")


def train(run, directory):
    """Steps of a real loop, without a save and with one under way."""
    width, layers, tokens = (64, 2, 32) if run.args.cpu else (4096, 6, 2048)
    stack = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(width, max(width // 128, 1), 4 * width, 0, batch_first=True, norm_first=True), layers)
    stack = stack.to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(stack.parameters(), lr=1e-5, fused=not run.args.cpu)
    x = torch.randn(4, tokens, width, device=run.device, dtype=torch.bfloat16)

    def steps(count):
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            optimizer.zero_grad()
            stack(x).float().pow(2).mean().backward()
            optimizer.step()
            run.synchronize()
            taken.append(time.perf_counter() - start)
        return taken

    steps(5)
    alone = steps(run.args.steps)
    for name in run.args.only.split(","):
        if name not in ("ours", "async") or run.late():
            continue
        saver = Ours(run) if name == "ours" else None
        path = os.path.join(directory, f"train-{name}")
        run.barrier()
        start = time.perf_counter()
        if saver:
            future = dcp.async_save(run.state, storage_writer=hbmfs.DCPWriter(path, writer=saver.stager.writer), async_stager=saver.stager, **run.options)
        else:
            future = dcp.async_save(run.state, storage_writer=dcp.FileSystemWriter(path), **run.options)
        held = time.perf_counter() - start
        beside = []
        while not future.done():  # a step that ends after the save is counted, too
            beside += steps(1)
        safe = time.perf_counter() - start
        future.result()
        after = steps(run.args.steps)
        usual, first = statistics.mean(alone + after), beside[: run.args.steps]
        row = {"what": SAVERS[name].__doc__, "held": held, "safe": safe, "steps": len(beside), "usual": usual, "beside": statistics.mean(beside)}
        row |= {
            "slower": (row["beside"] / usual - 1) * 100,
            "first slower": (statistics.mean(first) / usual - 1) * 100,
            "longest": max(beside),
            "longest alone": max(alone + after),
        }
        run.rows.append(row)
        run.say(f"{row}")
        run.barrier()
        if run.rank == 0:
            shutil.rmtree(path)
        if saver:
            saver.close()


def table(run):
    place = torch.cuda.get_device_name() if not run.args.cpu else "CPU"
    lines = [f"{run.size} x {place}, torch {torch.__version__}; {run.bytes / 1e9:.2f} GB in {len(run.state)} tensors a rank."]
    saves, trained = [row for row in run.rows if "slower" not in row], [row for row in run.rows if "slower" in row]
    if saves:
        lines += [
            "",
            "| saver | to | held, first save | held, last | staged, last | safe, last | GB/s to safe | CPU s/GB |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in saves:
        (held, _, _), (last, staged, safe) = row["first"], row["last"]
        rate = run.bytes * run.size / safe / 1e9
        lines.append(f"| {row['what']} | {row['to']} | {held:.3f} s | {last:.3f} s | {staged:.3f} s | {safe:.2f} s | {rate:.2f} | {row['cpu']:.2f} |")
    if trained:
        lines += [
            "",
            "| training beside | step without | step until safe | steps | slower | first 20 slower | longest step, without |",
            "|---|---|---|---|---|---|---|",
        ]
    for row in trained:
        lines.append(
            f"| {row['what']} | {row['usual'] * 1e3:.1f} ms | {row['beside'] * 1e3:.1f} ms | {row['steps']} | {row['slower']:+.1f} % | {row['first slower']:+.1f} % "
            f"| {row['longest'] * 1e3:.0f} ms, {row['longest alone'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=15.7, help="of each rank")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--to", action="append", help="directories; the first one is for all savers, the others for ours and dcp.save")
    parser.add_argument("--saves", type=int, default=3, help="0: only train, beside those of --only that save in the background")
    parser.add_argument("--only", default=",".join(SAVERS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300, help="after which nothing new begins")
    parser.add_argument("--quick", action="store_true", help="without the plain writer, and without loading what was saved")
    parser.add_argument("--json")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    run = Run(args)
    run.say(f"a state of {run.bytes / 1e9:.2f} GB")
    made = [tempfile.mkdtemp(dir=directory) for directory in args.to or [os.environ.get("TMPDIR", "/tmp")]] if run.rank == 0 else None
    if run.size > 1:
        found = [made]
        dist.broadcast_object_list(found)
        made = found[0]
    try:
        names = args.only.split(",") if args.saves else []
        if names:
            plain(run, made)
        for number, directory in enumerate(made):
            for name in names if number == 0 else [name for name in names if name in ("ours", "sync", "torch")]:
                if not run.late():
                    measure(run, name, directory)
        if args.steps and not run.late():
            train(run, made[0])
        run.barrier()
    finally:
        if run.rank == 0:
            for directory in made:
                shutil.rmtree(directory, ignore_errors=True)
    if run.rank == 0:
        print(table(run))
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({"bytes": run.bytes, "ranks": run.size, "rows": run.rows}, file, indent=1)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
