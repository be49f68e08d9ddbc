"""Every public class in a few lines, for type checkers: `mypy --strict typed.py`, `pyright typed.py`. test_arguments.py runs it, too."""

import sys
from pathlib import Path

import hbmfs
import torch
from hbmfs.checkpoints import Save
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save


def main(data: Path, folder: Path) -> None:
    with hbmfs.Reader("cpu") as reader, hbmfs.open(data, reader=reader, tensors=True) as ds, hbmfs.open(data, tensors=False) as arrays:
        rows: torch.Tensor = ds.gather([0, 5], 8)
        some: torch.Tensor = ds[2:5]
        last: int = int(arrays[-1]) + int(arrays.read(0, 4).sum()) + len(ds)
        request: hbmfs.Request[torch.Tensor] = ds.begin_gather(rows[0].tolist()[:1], 4)
        train: hbmfs.Part[torch.Tensor] = ds.split("train", {"train": 0.5, "val": 0.5})
        with hbmfs.TokenStream(train, 1, 8, epochs=1) as plain, hbmfs.TokenStream(ds, 1, 8, epochs=1, targets=True, dtype="int64") as pairs:
            total = sum(int(x.long().sum()) for x in plain) + sum(int((x - y).sum()) for x, y in pairs) + len(plain)
        mix = hbmfs.Mixture({"a": (ds, 0.5), "b": (train, 1)}, 1, 8, epochs=1)
        packed: hbmfs.Packed[torch.Tensor] = next(iter(hbmfs.PackedStream(ds, 1, 16)))
        both = next(iter(hbmfs.TokenStream(hbmfs.Aligned({"a": ds, "b": ds}), 1, 8)))["a"]
        total += int(next(iter(mix)).shape[0]) + packed.cu_seqlens.numel() + len(both) + last + len(some) + len(request.wait())
        file: hbmfs.File = reader.open_file(data)
        array: hbmfs.DeviceArray | None = None
        snapshot: hbmfs.Snapshot | None = None
    with hbmfs.Writer("cpu", memory=1 << 16) as writer:
        done: hbmfs.Written = writer.write(folder, [hbmfs.OutFile("x", 4, [hbmfs.FilePart(0, torch.zeros(1))])], progress=False).wait()
    hbmfs.save_safetensors({"w": torch.ones(3)}, folder / "model", progress=False)
    weights: dict[str, torch.Tensor] = hbmfs.load_safetensors(folder / "model", device="cpu", slices={"w": (slice(0, 2),)}, progress=False)
    with hbmfs.Checkpoints(folder / "run") as checkpoints, hbmfs.DCPStager(1 << 16, device="cpu") as stager:
        save: Save = checkpoints.save(1, {"w": weights["w"]})
        dcp_save({"w": weights["w"]}, storage_writer=hbmfs.DCPWriter(folder / "dcp", progress=False), no_dist=True)
        dcp_load({"w": weights["w"]}, storage_reader=hbmfs.DCPReader(save.wait()), no_dist=True)
    try:
        hbmfs.KVStore(folder, "blocks", 4096).get_many([b"key"], [bytearray(8)]).result()
    except hbmfs.UnavailableError as err:
        print(f"{total} {file.size} {array} {snapshot} {len(done.files)} {stager.held >= 0} {hbmfs.SKIP} {hbmfs.KVOutcome.DONE.name}: {err}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
