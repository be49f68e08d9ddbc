"""load_safetensors: help("hbmfs.weights") has the whole story."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._lib._arguments import Device, checked
from .._lib._transfer import Progress
from .._lib.reader import PageCache
from ..errors import InvalidError
from . import _model_files, _parts
from ._load import Call, Torch
from ._model_files import Names
from ._parts import Slices

if TYPE_CHECKING:
    import torch

    from .._lib.reader import Reader


@checked
def load_safetensors(
    path: str | os.PathLike[str],
    device: Device = None,
    *,
    method: str = "auto",
    names: Names = None,
    slices: Slices = None,
    group: Any = None,
    progress: Progress = None,
    reader: Reader | None = None,
    into: Mapping[str, Any] | torch.nn.Module | None = None,
    cast: bool = False,
    page_cache: PageCache = "keep",
) -> dict[str, torch.Tensor]:
    """Loads tensors by name, in the order of their files.

    device    "cuda:0", "cuda", an index, a torch.device, or "cpu". None: "cuda:0", and with into= wherever each tensor is
    method    the path into HBM that is wished for: see Reader
    names     only these tensors, or those for whose name it returns True
    slices    a mapping or a function from a name to what this rank wants of the tensor: None (all of it), a tuple of
              Python slices, one for each dimension, or hbmfs.SKIP (it is left out)
    group     a process group of torch.distributed, whose ranks all make this call: NCCL for GPUs, gloo for the CPU
    progress  None: a bar where tqdm is installed and stderr is a terminal; True, False, or a function(done, total)
              of the bytes that this rank reads
    reader    a Reader of this device, which stays open; by default one is made for this call
    into      tensors by name, or a module, that are filled in place: see help("hbmfs.weights")
    cast      with into=: converts elements where a tensor is of another dtype than the file
    page_cache  whether the files' pages stay in the page cache: "keep", "drop" once all bytes are in place on every rank,
              or "auto" to drop them where they exceed what the page cache could have: see Reader

    Raises FormatError for a damaged file or index, NotFoundError for a missing file, DtypeError for elements that
    torch (or NumPy) does not have, OutOfMemoryError; with a group, the failure of any rank, and GroupError where one is
    gone or sees other files. After any exception, KeyboardInterrupt too, all memory is free. With into= also TargetError
    where tensors do not fit, which changes nothing, and UndefinedError where a read failed midway.
    """
    call = Call(path, device, method, names, slices, group, progress, reader, page_cache)
    if into is not None:
        from . import _into  # it needs torch

        return _into.load(call, into, cast)
    if cast:
        raise InvalidError("cast=True converts to the dtypes of tensors that are there: give these as into=")
    return call.load()


def outlines(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """All tensors of a model by name, without memory: on the meta device of torch."""
    library, found = Torch("meta"), dict[str, Any]()
    for header in _model_files.headers(path, None):
        for tensor in header.tensors:
            library.check(tensor)
            found[tensor.name] = library.empty(_parts.part(tensor, None))
    return found
