"""Wrong calls of every public function and class, made of their signatures: each parameter in turn is given each of VALUES.

`python wrong_calls.py N` prints N of them, chosen at random, with what they raise.
"""

import inspect
import os
import queue
import random
import sys
import tempfile
from pathlib import Path

import hbmfs
import numpy as np
import samples_folder
from hbmfs._lib._arguments import ANYTHING, kinds_of



class Plain:
    def __init__(self, *_):
        pass


def nothing(*_):
    return None


VALUES = {
    "None": None, "text": "x", "bytes": b"x", "half": 1.5, "nan": float("nan"), "negative": -1, "huge": 1 << 70, "true": True, "list": [], "nothing in a list": [None],
    "dict": {}, "names": {"x": "y"}, "object": object(), "type": Plain, "function": nothing, "array": np.zeros(3), "file": "a-file", "path": Path("a-file/below"),
}  # fmt: skip

MADE_BY_OTHERS = {"Dataset", "DeviceArray", "File", "Request", "Snapshot", "Write", "KVOutcome", "KVResult", "Packed", "Ragged", "FilePart", "OutFile", "Written", "WrittenFile"}
"""Nobody calls these classes: datasets are opened, results are given."""

LOW = {"begin_pieces", "gather_into", "begin", "numbers_of", "opened", "place"}
"""Methods that only the package itself calls, with addresses or planned arrays."""

OF_TORCH = {
    "load_bytes", "read_metadata", "read_data", "set_up_storage_reader", "prepare_local_plan", "prepare_global_plan", "finish", "set_up_storage_writer", "write_data",
    "validate_checkpoint_id", "checkpoint_id", "stage", "reset", "publish",
}  # fmt: skip
"""Methods that torch calls."""

NO_MODULES = {"deepspeed", "transformers", "vllm"}
"""Their packages are not there; peers tests them."""


class Calls:
    """All wrong calls, as (name, parameter, value, declared kind, what calls it)."""

    def __init__(self, folder):
        tokens = np.arange(5000, dtype=np.uint16)
        np.save(folder / "tokens.npy", tokens)
        (folder / "a-file").write_bytes(b"1")
        for split in ("train", "val"):
            tokens.tofile(folder / f"{split}.bin")
        os.makedirs(folder / "views/.hbmfs/views")
        np.save(folder / "views/.hbmfs/views/tokens.npy", tokens)
        np.save(folder / "views/.hbmfs/views/documents.npy", np.arange(0, 5001, 50))
        hbmfs.save_safetensors({"w": np.arange(8.0)}, folder / "weights", progress=False)
        self.folder = folder
        self.ds = ds = hbmfs.open(folder / "views", tensors=False)
        samples_folder.write(folder / "fields", {"number": np.arange(100)})
        self.samples = hbmfs.SampleDataset(folder / "fields")
        self.reader = hbmfs.Reader("cpu")
        self.file = self.reader.open_file(folder / "tokens.npy")
        self.writer = hbmfs.Writer("cpu", memory=1 << 20)
        self.checkpoints = hbmfs.Checkpoints(folder / "run")
        self.good = {
            "path": folder / "tokens.npy", "paths": [folder / "tokens.npy"], "device": "cpu", "dataset": ds, "datasets": {"a": ds}, "whole": ds, "numbers": [0],
            "documents": [0], "samples": [0], "batch_size": 2, "seq_len": 8, "sources": {"a": (ds, 1)}, "starts": [0, 5], "start": 0, "length": 4, "depth": 2, "batches": 1, "name": "train",
            "tensors": {"w": np.zeros(3)}, "directory": folder / "new", "files": [], "nbytes": 5, "step": 1, "mount": folder, "namespace": "x", "given": str(folder / "tokens.npy"),
            "data": folder, "block_size": 4, "path_prefix": str(folder / "train"), "pointer": 0, "offset": 0, "offsets": [0], "lengths": [4], "state": {},
        }  # fmt: skip
        self.special = {
            "load_safetensors": {"path": folder / "weights"}, "safe_open": {"filename": folder / "weights"}, "Writer.snapshot": {"tensors": [np.zeros(3)]}, "DCPReader": {"path": folder / "run"}, "DCPWriter": {"path": folder / "run/x"},
            "Checkpoints.load": {"state": {}, "step": None}, "save_safetensors": {"directory": folder / "saved"}, "DCPStager": {"memory": 4096},
            "SampleDataset": {"path": folder / "fields"}, "SampleStream": {"dataset": self.samples},
            "TokenStream": {"documents": False}, "Mixture": {"documents": False}, "Reader.device": {},
        }  # fmt: skip

    def callables(self):
        """Every public function, class and method, by name."""
        for name in sorted({*hbmfs.__all__} - MADE_BY_OTHERS - NO_MODULES):
            value = getattr(hbmfs, name)
            if inspect.ismodule(value):
                for own in getattr(value, "__all__", None) or [n for n in vars(value) if not n.startswith("_")]:
                    if callable(getattr(value, own)) and getattr(value, own).__module__.startswith("hbmfs") and not hasattr(hbmfs, own) and own != "Index":
                        if own not in ("open_dataset", "checked") and not (inspect.isclass(getattr(value, own)) and issubclass(getattr(value, own), Exception)):
                            yield f"{name}.{own}", getattr(value, own)
            elif callable(value) and not (inspect.isclass(value) and issubclass(value, (Exception, Warning))):
                yield name, value
        stream = hbmfs.TokenStream(self.ds, 2, 8, epochs=1)
        objects = {
            "Dataset": self.ds, "Reader": self.reader, "File": self.file, "Writer": self.writer, "TokenStream": stream, "Checkpoints": self.checkpoints,
            "Mixture": hbmfs.Mixture({"a": (self.ds, 1)}, 2, 8, epochs=1), "PackedStream": hbmfs.PackedStream(self.ds, 2, 8, epochs=1), "Part": self.ds.split("train"),
            "SampleDataset": self.samples, "SampleStream": hbmfs.SampleStream(self.samples, 2, epochs=1), "Aligned": hbmfs.Aligned({"a": self.ds}), "Request": self.ds.begin_gather([0], 2), "Queue": self.ds.queue(10_000),
        }  # fmt: skip
        for name, value in objects.items():
            for own, _ in inspect.getmembers(type(value), inspect.isroutine):
                if not own.startswith("_") and own not in LOW | OF_TORCH:
                    yield f"{name}.{own}", getattr(value, own)

    def __iter__(self):
        for name, call in self.callables():
            kinds = kinds_of(call.__init__ if inspect.isclass(call) else call)
            parameters = [p for p in inspect.signature(call).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            given = {**self.good, **self.special.get(name, {})}
            required = {p.name: given[p.name] for p in parameters if p.default is p.empty or (p.name == "device" and "." not in name)}
            for parameter in parameters:
                if parameter.name.startswith("_"):
                    continue
                for value in VALUES.values():
                    yield name, parameter.name, value, kinds.get(parameter.name, ANYTHING), call, {**required, parameter.name: value}


def outcome(call, arguments):
    """The exception of a call, or None."""
    try:
        made = call(**arguments)
    except BaseException as err:  # noqa: BLE001 (what it is, is the question)
        return err
    if hasattr(made, "close"):
        made.close()
    return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        calls = [*Calls(Path(folder))]
        failures = []
        for name, parameter, value, _, call, arguments in calls:
            if "-v" in sys.argv:
                print(name, parameter, value, file=sys.stderr, flush=True)
            failures.append((name, parameter, outcome(call, arguments)))
        failures = [failure for failure in failures if failure[2] is not None]
        raw = [failure for failure in failures if not isinstance(failure[2], (hbmfs.Error, queue.Empty))]
        print(f"{len({name for name, *_ in calls})} callables, {len(calls)} calls, {len(failures)} of them wrong, {len(raw)} raw")
        for name, parameter, err in raw:
            print("RAW", name, parameter, type(err).__name__, err)
        for name, _, err in random.sample(failures, int(sys.argv[1])):
            print(f"{name}: {type(err).__name__}: {err}")
