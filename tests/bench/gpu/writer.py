"""writer.py DIRECTORY [--tmpfs /dev/shm] [--layers 32] [--rounds 3] [--device cuda:0]: what hbmfs.Writer is worth.

It fills a device with the tensors of a Llama-8B (15.7 GB of bfloat16 in some 290 tensors with 32 layers) and measures, one after the
other in each round: plain copies into pinned memory, snapshots, and files written from the arena and straight from the device, to a
directory on a disk and to tmpfs; beside a tuned O_DIRECT writer of plain threads and safetensors.save_file. It compares what was
written with the tensors, and prints a table. Sizes go down with --layers, so that it can be tried on a CPU.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable

import torch

import hbmfs

CHUNK = 4 << 20
Rows = dict[str, list[tuple[float, float, str]]]


def tensors(layers: int, device: str) -> dict[str, torch.Tensor]:
    shapes = {"embed": (128256, 4096), "norm": (4096,), "head": (128256, 4096)}
    if layers < 4:
        shapes = {"embed": (12825, 1024), "norm": (4096,)}
    for i in range(layers):
        block = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096), "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336)}
        for name, shape in {**block, "in_norm": (4096,), "out_norm": (4096,)}.items():
            shapes[f"layer.{i}.{name}"] = shape
    made = {}
    for i, (name, shape) in enumerate(shapes.items()):
        made[name] = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(i)
    return made


def files(state: dict[str, torch.Tensor], align: int) -> list[hbmfs.OutFile]:
    """Four files of tensors that begin at multiples of `align`: 4096 as a checkpoint of DCP has them, 2 as one of safetensors."""
    share = sum(t.nbytes for t in state.values()) / 4
    made, parts, at, left = [], [], 0, share
    header = b"{" + b" " * (3000 if align < 4096 else 0)
    if align < 4096:
        parts.append(hbmfs.FilePart(0, header))
        at = len(header) + 1
    for tensor in state.values():
        at = -(-at // align) * align
        parts.append(hbmfs.FilePart(at, tensor))
        at, left = at + tensor.nbytes, left - tensor.nbytes
        if left <= 0:
            made.append(hbmfs.OutFile(f"part-{len(made)}", at, parts))
            parts, at, left = [], 0, share
    if parts:
        made.append(hbmfs.OutFile(f"part-{len(made)}", at, parts))
    return made


def check(directory: str, made: list[hbmfs.OutFile], written: hbmfs.Written, total: int) -> None:
    """Compares some tensors with the files, bit by bit, and every file's size."""
    for file, told in zip(made, written.files, strict=True):
        path = os.path.join(directory, file.name)
        assert os.path.getsize(path) == file.size == told.size, path
        with open(path, "rb") as f:
            for part in file.parts[:: max(1, len(file.parts) // 8)]:
                if isinstance(part.data, torch.Tensor):
                    f.seek(part.offset)
                    got = torch.frombuffer(bytearray(f.read(part.data.nbytes)), dtype=torch.uint8)
                    assert torch.equal(got, part.data.cpu().reshape(-1).view(torch.uint8)), f"{path}: {part.offset}"
    assert sum(written.moved.values()) >= total


def tuned(directory: str, memory: memoryview, threads: int) -> None:
    """What a tuned writer does: fallocate, aligned O_DIRECT writes from host memory by plain threads, fsync."""
    fd = os.open(os.path.join(directory, "tuned"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_DIRECT", 0))
    try:
        size = len(memory) // CHUNK * CHUNK
        os.posix_fallocate(fd, 0, size)
        blocks = iter(range(0, size, CHUNK))
        turn = threading.Lock()

        def work() -> None:
            while True:
                with turn:
                    at = next(blocks, None)
                if at is None:
                    return
                assert os.pwrite(fd, memory[at : at + CHUNK], at) == CHUNK

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        os.fsync(fd)
    finally:
        os.close(fd)


def snap(writer: hbmfs.Writer, values: list[torch.Tensor], kept: list[hbmfs.Snapshot]) -> str:
    began = time.monotonic()
    kept.append(writer.snapshot(values))
    called = time.monotonic() - began
    kept[0].wait()
    return f"call {called * 1e3:.1f} ms"


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows: Rows = {}
        self.state = tensors(args.layers, args.device)
        self.total = sum(t.nbytes for t in self.state.values())
        self.cuda = args.device != "cpu"
        self.prepared: list[str] = []

    def time(self, name: str, call: Callable[[], str | None]) -> None:
        if self.cuda:
            torch.cuda.synchronize()
        os.sync()
        cpu, began = time.process_time(), time.monotonic()
        note = call() or ""
        if self.cuda and name.startswith("pinned"):
            torch.cuda.synchronize()
        took = time.monotonic() - began
        self.rows.setdefault(name, []).append((took, time.process_time() - cpu, note))
        print(f"  {name}: {took:.3f} s {note}", flush=True)

    @contextlib.contextmanager
    def directory(self, root: str):
        path = tempfile.mkdtemp(prefix="hbmfs-writer-", dir=root)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def write(self, name: str, writer: hbmfs.Writer, root: str, made: list[hbmfs.OutFile]) -> None:
        with self.directory(root) as path:
            kept = []

            def call() -> str:
                written = writer.write(path, made, progress=False).wait()
                kept.append(written)
                phases = ""
                if written.prepared:
                    moving = written.seconds - written.prepared - written.released
                    rate = self.total / 1e9 / moving
                    phases = f", pages and registering {written.prepared:.3f}, moving {moving:.3f} ({rate:.1f} GB/s), unregistering {written.released:.3f}"
                return f"{'+'.join(written.moved)}{phases}"

            self.time(name, call)
            check(path, made, kept[0], self.total)

    def run(self) -> None:
        args = self.args
        room = sum(-(-t.nbytes // 4096) * 4096 for t in self.state.values())
        began = time.monotonic()
        writer = hbmfs.Writer(args.device, memory=room, threads=args.threads)
        opened = time.monotonic() - began
        writer.wait_ready()
        print(
            f"{self.total / 1e9:.2f} GB in {len(self.state)} tensors; opened after {opened:.3f} s, arena pinned after {time.monotonic() - began:.2f} s",
            flush=True,
        )
        others = {path: hbmfs.Writer(args.device, require=path, threads=args.threads) for path in ("staged", "buffered", "mapped")}
        pinned = {n: torch.empty_like(t, device="cpu", pin_memory=self.cuda) for n, t in self.state.items()}
        values = list(self.state.values())
        hot = args.tmpfs if os.path.isdir(args.tmpfs) else None
        for turn in range(args.rounds):
            print(f"round {turn + 1}", flush=True)
            self.time("pinned copies, by torch", lambda: [pinned[n].copy_(t, non_blocking=True) for n, t in self.state.items()] and None)
            kept: list[hbmfs.Snapshot] = []
            self.time("snapshot", functools.partial(snap, writer, values, kept))
            for got, tensor in zip(kept[0].tensors[::17], values[::17], strict=True):
                assert torch.equal(got.view(torch.uint8), tensor.cpu().view(torch.uint8))
            copies = dict(zip(self.state, kept[0].tensors, strict=True))
            if args.only != "tmpfs":
                self.disk(turn, room, writer, others, kept[0], copies)
            if hot and args.only != "disk":
                self.write("tmpfs: device, mapped", others["mapped"], hot, files(self.state, 4096))
                self.write("tmpfs: arena, mapped", others["mapped"], hot, files(copies, 4096))
                if turn == 0:
                    self.write("tmpfs: device, buffered", others["buffered"], hot, files(self.state, 4096))
            kept[0].release()
            copies.clear()
        for made in (writer, *others.values()):
            print(made.stats())
            made.close()

    def disk(self, turn: int, room: int, writer: hbmfs.Writer, others: dict[str, hbmfs.Writer], kept: hbmfs.Snapshot, copies: dict[str, torch.Tensor]) -> None:
        args = self.args
        self.write("disk: arena, aligned", writer, args.directory, files(copies, 4096))
        with self.directory(args.directory) as path:
            memory = memoryview((ctypes.c_char * room).from_address(kept.tensors[0].data_ptr())).cast("B")
            threads = (4, 8, 12)[turn % 3] if args.quick else None
            for n in (4, 8, 12) if threads is None else (threads,):
                self.time(f"disk: tuned O_DIRECT, {n} threads", functools.partial(tuned, path, memory, n))
                os.unlink(os.path.join(path, "tuned"))
            del memory
        self.write("disk: arena, packed as safetensors", writer, args.directory, files(copies, 2))
        self.write("disk: device, staged", others["staged"], args.directory, files(self.state, 4096))
        if args.safetensors and turn == 0:
            self.safetensors(args.directory)

    def safetensors(self, root: str) -> None:
        from safetensors.torch import save_file

        with self.directory(root) as path:
            self.time("disk: safetensors.save_file", lambda: save_file(self.state, os.path.join(path, "model.safetensors")))
            self.time("    and its fsync", lambda: os.system(f"sync {path}/model.safetensors") and None)

    def table(self) -> None:
        best = {"disk": self.best("disk: tuned"), "snap": self.best("pinned")}
        print(f"\n{self.total / 1e9:.2f} GB, {self.args.device}, {os.cpu_count()} CPUs; median (least to most) of the rounds; first and third apart\n")
        print("| what | s | GB/s | of the best tuned writer, or of pinned copies | CPU s/GB | first, third | notes |")
        print("|---|---|---|---|---|---|---|")
        for name, runs in self.rows.items():
            took = [r[0] for r in runs]
            middle = statistics.median(took)
            against = best["disk"] if name.startswith("disk") else best["snap"]
            cpu = statistics.median(r[1] for r in runs) / (self.total / 1e9)
            third = f"{took[2]:.3f}" if len(took) > 2 else "-"
            rate = self.total / 1e9 / middle
            print(
                f"| {name} | {middle:.3f} ({min(took):.3f} to {max(took):.3f}) | {rate:.2f} | {against / middle:.2f} | {cpu:.2f} | {took[0]:.3f}, {third} | {runs[-1][2]} |"
            )

    def best(self, prefix: str) -> float:
        return min((statistics.median(r[0] for r in runs) for name, runs in self.rows.items() if name.startswith(prefix)), default=float("nan"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--tmpfs", default="/dev/shm")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--quick", action="store_true", help="one number of threads of the tuned writer in each round")
    parser.add_argument("--safetensors", action="store_true", help="measure safetensors.save_file, too, once: it takes long")
    parser.add_argument("--only", choices=("disk", "tmpfs"))
    parser.add_argument("--seconds", type=int, default=0, help="end after so many, with the table of what was measured by then")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(args.seconds)
    bench = Bench(args)
    try:
        bench.run()
    except KeyboardInterrupt:
        print("interrupted")
    bench.table()


if __name__ == "__main__":
    main()
