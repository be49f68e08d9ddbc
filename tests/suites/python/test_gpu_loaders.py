"""What the comparisons of loaders in tests/bench/gpu keep, without a GPU: nothing of a loader may be there when the next one begins."""

import sys
import time
import types
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "bench" / "gpu"))
from torch_weights import Clock, compared, takes_part


class Lent(dict):
    """Tensors whose memory their loader keeps until it is closed, with them."""

    def __init__(self, tensors, *owners):
        super().__init__(tensors)
        self._owners = owners

    def __del__(self):
        self.clear()
        for owner in self._owners:
            owner.close()


class Owner:
    """A loader that keeps its tensors' memory until it is closed, as those of some peers do."""

    def __init__(self, held):
        self.held = held
        held.append(self)

    def close(self):
        self.held.remove(self)


def test_the_memory_of_each_loader_is_free_before_the_next_one(capsys):
    held, expected = [], {"a": torch.ones(3, dtype=torch.bfloat16)}

    def load(found=1):
        assert not held
        return Lent({"a": found * expected["a"]}, Owner(held))

    def fail():
        assert not held
        raise RuntimeError("not now")

    ways = dict(compared([("one", load), ("other bytes", lambda: load(2)), ("fails", fail), ("two", load)], expected))
    assert list(ways) == ["one", "two"], capsys.readouterr().out
    clock = Clock("cpu", 6)
    for _ in range(3):
        for name, way in ways.items():
            clock.measure(name, way)
    assert not held and len(clock.rows["two"]["seconds"]) == 3


def test_slow_loaders_take_part_in_fewer_rounds():
    for seconds, rounds in ((0.3, 5), (2.0, 2), (9.0, 1)):
        took = []
        for _ in range(5):
            took += [seconds] if takes_part(took) else []
        assert len(took) == rounds


def test_memory_that_was_freed_is_wiped_before_the_next_load_begins(monkeypatch):
    done = []
    for name in ("empty_cache", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: done.append(name))
    clock = types.SimpleNamespace(perf_counter=time.perf_counter, process_time=time.process_time, sleep=lambda seconds: done.append(seconds >= 0.03))
    monkeypatch.setattr("torch_weights.time", clock)
    Clock("cuda:0", 6).measure("one", lambda: done.append("load"))
    assert done[: done.index("load")] == ["empty_cache", "synchronize", True, "synchronize"]
