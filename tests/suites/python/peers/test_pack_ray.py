"""deploy/examples/pack_ray.py on a real local Ray cluster of several workers, of which one is killed."""

import filecmp
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

HBMFS = os.environ.get("HBMFS_BINARY") or "hbmfs"
EXAMPLE = Path(__file__).resolve().parents[4] / "deploy" / "examples" / "pack_ray.py"
PARTS = 6


def example():
    spec = importlib.util.spec_from_file_location("pack_ray", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def corpus(tmp_path):
    """Lines of several megabytes, so that a part takes long enough to be killed within it."""
    rng = random.Random(0)
    words = [f"{rng.choice(['Wort', 'word', 'слово', '语'])}{rng.randrange(5000)}" for _ in range(20000)]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        with (source / name).open("w") as f:
            for i in range(20000):
                f.write(json.dumps({"id": i, "text": " ".join(rng.choices(words, k=rng.randrange(100)))}) + "\n")
    return source


def worker_of(part):
    """Returns the processes of a part that runs: hbmfs pack, and the worker that started it."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = path.read_bytes().split(b"\0")
            if b"--part" in argv and argv[argv.index(b"--part") + 1] == part.encode():
                status = (path.parent / "stat").read_text()
                return int(path.parent.name), int(status.rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return None


def test_peer_ray_with_a_killed_worker(tmp_path, corpus):
    alone = tmp_path / "alone"
    subprocess.run([HBMFS, "pack", "--to", "llmc", "--shard-tokens", "1M", str(corpus), str(alone)], check=True, stdout=subprocess.DEVNULL)
    killed = []

    def kill():
        for _ in range(12000):
            found = worker_of(f"1/{PARTS}")
            state = tmp_path / "out.parts" / "00001" / ".hbmfs-pack-state.json"
            if found and state.exists():
                os.kill(found[1], signal.SIGKILL)
                killed.append(found)
                return
            time.sleep(0.005)

    short = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets have 107 bytes at most
    try:
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _temp_dir=short)
        killer = threading.Thread(target=kill)
        killer.start()
        example().pack([str(corpus)], str(tmp_path / "out"), PARTS, hbmfs=HBMFS,
                       flags=("--to", "llmc", "--shard-tokens", "1M", "--save-every", "20ms"))
        killer.join()
    finally:
        ray.shutdown()
        shutil.rmtree(short, ignore_errors=True)  # its processes may end a moment later
    assert killed, "no worker was killed while it packed"
    names = sorted(p.name for p in alone.iterdir())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    assert filecmp.cmpfiles(alone, tmp_path / "out", names, shallow=False) == (names, [], [])
