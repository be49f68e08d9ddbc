"""saves.py DIR [--device cuda] [--bytes N] [--json FILE]: save_safetensors and Checkpoints out of HBM, on a machine with a GPU and torch.

It compares bits, prints how long each took beside safetensors.torch.save_file of the same tensors, how long training was held, and what
SIGTERM leaves of a save that is under way. DIR needs room for three times the bytes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hbmfs
import torch


def weights(size, device, seed):
    g = torch.Generator(device).manual_seed(seed)
    shapes = [(4096, 4096), (4096, 11008), (4096,), (1000, 333)]
    found = {}
    while (have := sum(tensor.nbytes for tensor in found.values())) < size:
        shape = shapes[len(found) % len(shapes)]
        found[f"{len(found)}"] = torch.randn(shape, generator=g, device=device, dtype=torch.bfloat16)
        if have == sum(tensor.nbytes for tensor in found.values()):
            break
    return found


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(found[name].view(torch.uint8), expected[name].view(torch.uint8)) for name in expected)


def timed(call):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def of_safetensors(folder, tensors, device, result):
    try:
        from safetensors.torch import save_file
    except ImportError:
        pass
    else:
        for number in range(2):
            (folder / "theirs").mkdir(exist_ok=True)
            result[f"save_file {number + 1}"], _ = timed(lambda: save_file(tensors, folder / "theirs" / "model.safetensors"))
        shutil.rmtree(folder / "theirs")
    for number in range(2):
        shutil.rmtree(folder / "ours", ignore_errors=True)
        result[f"save_safetensors {number + 1}"], written = timed(lambda: hbmfs.save_safetensors(tensors, folder / "ours", progress=False))
    result["path"], result["reason"] = written.path, written.reason
    assert same(hbmfs.load_safetensors(folder / "ours", device), tensors), "save_safetensors: other bits"
    shutil.rmtree(folder / "ours")


def of_checkpoints(folder, tensors, device, size, result):
    with hbmfs.Checkpoints(folder / "ck", 1, memory=size + (1 << 30), device=device) as ck:
        for step in range(3):
            save = ck.save(step, tensors)
            result[f"Checkpoints {step + 1}: held"] = save.held
            result[f"Checkpoints {step + 1}: safe after"], _ = timed(save.wait)
        found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        assert ck.load(found) == 2 and same(found, tensors), "Checkpoints: other bits"
        for tensor in tensors.values():
            tensor += 1
        save = ck.save(3, tensors)
        expected = {name: tensor.clone() for name, tensor in tensors.items()}
        for tensor in tensors.values():
            tensor.zero_()  # the state that is saved is the one before
        save.wait()
        assert ck.load(found) == 3 and same(found, expected), "Checkpoints: a tensor that changed after save() was saved"


def preempted(folder, device, size):
    """Runs in a process of its own, which is sent SIGTERM."""
    tensors = weights(size, device, 1)
    with hbmfs.Checkpoints(folder / "ck", 2, memory=size + (1 << 30), device=device) as ck, ck.on_preemption():
        ck.save(10, tensors).wait()
        ck.save(11, tensors)
        print("saving", flush=True)
        while True:
            time.sleep(0.01)


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("dir", type=Path)
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--bytes", type=lambda text: int(float(text)), default=int(8e9))
    flags.add_argument("--json")
    flags.add_argument("--preempted", action="store_true")
    arguments = flags.parse_args()
    folder, device, size = arguments.dir, arguments.device, arguments.bytes
    if arguments.preempted:
        preempted(folder, device, size)
    folder.mkdir(exist_ok=True)
    tensors, result = weights(size, device, 1), {"bytes": size}
    size = sum(tensor.nbytes for tensor in tensors.values())
    of_safetensors(folder, tensors, device, result)
    of_checkpoints(folder, tensors, device, size, result)
    shutil.rmtree(folder / "ck")
    child = subprocess.Popen([sys.executable, "-W", "ignore", __file__, folder, "--device", device, "--bytes", str(arguments.bytes), "--preempted"], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"saving\n"
    os.kill(child.pid, signal.SIGTERM)
    result["SIGTERM: gone after"], code = timed(child.wait)
    assert code == -signal.SIGTERM, code
    with hbmfs.Checkpoints(folder / "ck", device=device) as ck:
        result["SIGTERM: steps"] = ck.steps()
    assert result["SIGTERM: steps"] in ([10, 11], [10]), result
    shutil.rmtree(folder / "ck")
    for name, value in result.items():
        print(f"{name:32} {value if not isinstance(value, float) else f'{value:8.3f} s  {size / value / 1e9:7.2f} GB/s'}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result))


main()
