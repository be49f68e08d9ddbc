"""Checkpoints of DeepSpeed, written straight from HBM, and complete or not there.

    engine, *_ = deepspeed.initialize(...)
    engine.checkpoint_engine = hbmfs.deepspeed.CheckpointEngine()      # on every rank
    engine.save_checkpoint("/ckpt/run-1")

DeepSpeed has no setting for it, so it is assigned (0.19.8 is tested). All files have DeepSpeed's names and torch.save's form: stock DeepSpeed,
torch.load and zero_to_fp32.py read them. Storages of a page or more begin at a multiple of 4,096 bytes.

While save_checkpoint runs, the files of a tag are in a draft beside it. When all ranks have written theirs, commit publishes the
directory of the tag with a manifest (`hbmfs checkpoint verify`), and then DeepSpeed writes `latest`. If one rank fails, all ranks
raise that, and the draft is gone. A tag that is there is never overwritten: ExistsError. Files outside of a tag, such as
save_16bit_model's, appear by a rename, too, and replace earlier files.

save_checkpoint returns when all is on storage. Optimizer states on NVMe (ZeRO-Infinity) are copied into the tag by DeepSpeed itself, so
leave its own engine there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Any

try:
    import torch
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine as _Base
except ModuleNotFoundError as err:
    raise ModuleNotFoundError(f"hbmfs.deepspeed needs torch and deepspeed: pip install {err.name}", name=err.name) from None

from .._lib import _device
from .._lib._arguments import Device, checked
from .._lib.writer import FilePart, OutFile, Writer, WrittenFile
from ..checkpoints._publishing import Draft, Shared
from ..checkpoints._torch_object import lay_out
from ..group import _ranks


class CheckpointEngine(_Base):  # type: ignore[misc]
    """Writes and reads the files of DeepSpeed's checkpoints. Every rank makes one, at the same time.

    device      the GPU that the states are on; None: the current one, or the CPU where there is none
    node_local  whether each node has a disk of its own (DeepSpeed's "use_node_local_storage")
    options     method, require, threads and rate are those of the Writer that is opened: see there
    """

    @checked
    def __init__(self, *, device: Device = None, node_local: bool = False, **options: Any) -> None:
        super().__init__()
        self.name = "hbmfs"
        self._local = node_local
        self._writer = Writer(_device.name(_device.parse(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)), **options)
        self._ranks = _ranks.everybody()
        self._tag: str | None = None
        self._place: _ranks.Place | None = None
        self._draft: Draft | None = None
        self._files: list[WrittenFile] = []
        self._failure: Exception | None = None

    # The methods that DeepSpeed calls, in its order. Up to commit nothing is raised: the other ranks would wait for this one.

    def create(self, info: Any) -> None:
        self._drop()
        self._tag = os.path.abspath(os.path.join(info.save_dir, str(info.tag)))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory; that of the tag, which all ranks ask for, as a draft."""
        if os.path.abspath(path) != self._tag:
            os.makedirs(path, exist_ok=exist_ok)
        elif self._place is None:
            self._begin(self._tag)

    def save(self, state_dict: Any, path: str) -> None:
        where, name = os.path.split(os.path.abspath(path))
        if self._place is None or where != self._tag:
            self._save_alone(state_dict, where, name)
        elif self._failure is None:
            try:
                with Shared.of(self._tag) if self._draft is None else contextlib.nullcontext(self._draft) as draft:
                    self._files += self._write(state_dict, draft, name)
            except Exception as err:  # noqa: BLE001 (all ranks raise it)
                self._failure = err

    def commit(self, info: Any) -> bool:
        """Publishes the tag, where all ranks have written their files; otherwise all ranks raise why one has not."""
        if self._place is None:
            return True
        place = self._place

        def written() -> tuple[int, list[WrittenFile]]:
            if self._failure is not None:
                raise self._failure
            return place.node, self._files

        def publish() -> None:
            if self._draft is not None:
                self._draft.publish(file for node, files in said if node == place.node for file in files)

        try:
            said = self._ranks.gather(written)
            self._ranks.gather(publish)
        finally:
            self._drop()
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        return torch.load(path, map_location=map_location, weights_only=False)

    def close(self) -> None:
        """Gives the writer's memory back."""
        self._drop()
        self._writer.close()

    # How it is done.

    def _begin(self, tag: str) -> None:
        def begin() -> None:
            if place.leader:
                self._draft = Draft.begin(tag, part=(place.node, place.nodes))

        self._place = place = _ranks.Place(0, 1, False)
        try:
            self._place = place = _ranks.place(self._ranks, os.path.dirname(tag), self._local)
            self._ranks.gather(begin)
        except Exception as err:  # noqa: BLE001 (DeepSpeed drops an exception here, and commit raises it)
            self._failure = err

    def _drop(self) -> None:
        draft, self._draft = self._draft, None
        self._tag, self._place, self._files, self._failure = None, None, [], None
        if draft is not None:
            draft.drop()

    def _write(self, state: Any, where: Shared | str, name: str) -> list[WrittenFile]:
        size, parts = lay_out(state)
        files = [OutFile(name, size, [FilePart(at, data) for at, data in parts])]
        write = self._writer.write(where, files, False) if isinstance(where, str) else where.write(self._writer, files, False)
        return write.wait().files

    def _save_alone(self, state: Any, directory: str, name: str) -> None:
        draft = f".{name}.{secrets.token_hex(4)}.hbmfs.tmp"
        try:
            self._write(state, directory, draft)
            os.replace(os.path.join(directory, draft), os.path.join(directory, name))
        except BaseException:
            if os.path.exists(os.path.join(directory, draft)):
                os.unlink(os.path.join(directory, draft))
            raise
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
