"""The prefetch interface of safetensors 0.9 over hbmfs: tensors are handed out as they arrive.

    with hbmfs.safe_open(path, framework="pt", device="cuda:0") as f:
        plan = {name: None for name in f.keys()} | {"embed.weight": slice(0, 16_000)}
        with f.prefetch(plan) as loader:
            for name, tensor in loader:
                ...

Code that was written for safetensors.safe_open runs with it. The calls, their results and what they refuse are those of safetensors 0.9.0rc1, except:

- The path may also be a directory, the index of a sharded model, or a list of files. One loader then reads all of them, one after the other.
- prefetch loads to the CPU, too.
- The number of threads follows the machine. `threads` is taken and has no effect.
- Errors are those of hbmfs: InvalidError for a plan or a name that makes no sense, ClosedError after close().
- Iterating gives tensors in the order of their bytes, whatever the order of the plan. safetensors leaves that order open.

Tensors are views of allocations of 4 GiB at most, if no tensor is larger. Memory is given back when the last tensor of an allocation is gone.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lib import _device
from .._lib._arguments import Device, Path, checked
from ..errors import ClosedError, InvalidError
from . import _model_files, _parts
from ._arriving import Arriving
from ._parts import Cut
from .safetensors_header import Header, Tensor, open_regular, read_exactly

if TYPE_CHECKING:
    from .._lib.reader import Reader

Plan = Mapping[str, slice | None]
"""Names of tensors, each with None for the whole tensor or a slice of its first dimension with the step 1."""


class TensorMeta(NamedTuple):
    """What a file's header says of a tensor: data_offsets are its begin and end among the file's data."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@checked
def safe_open(
    filename: Path | Sequence[Path], framework: str = "pt", device: Device = "cpu", *, backend: str = "mmap", method: str = "auto", reader: Reader | None = None
) -> SafeOpen:
    """Opens safetensors files, to hand out tensors of torch.

    filename   a file, a directory, the index of a sharded model, or a list of files
    framework  "pt", or "torch"
    device     where tensors go: "cpu", "cuda:0", "cuda", an index or a torch.device
    backend    is taken for safetensors' sake, and has no effect
    method     the path into HBM that is wished for: see Reader
    reader     a Reader of this device, which stays open; by default each loader opens one

    Raises FormatError for a damaged file or index, and NotFoundError for a missing file.
    """
    if framework not in ("pt", "torch"):
        raise InvalidError(f"framework is {framework!r}: only 'pt' is there, tensors of torch")
    files = [filename] if isinstance(filename, (str, os.PathLike)) else list(filename)
    if not files:
        raise InvalidError("filename is an empty list: name a file")
    headers = _model_files.headers(files[0], None) if len(files) == 1 else _model_files.headers_of({os.fspath(file): None for file in files}, None)
    return SafeOpen(headers, _device.name(_device.parse(device)), method, reader)


class SafeOpen:
    """Open safetensors files. Headers were read; tensors are read when they are asked for."""

    def __init__(self, headers: Sequence[Header], device: str, method: str, reader: Reader | None) -> None:
        self._headers: Sequence[Header] | None = headers
        self._device, self._method, self._reader = device, method, reader

    def keys(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self.offset_keys())

    def offset_keys(self) -> list[str]:
        """The names of all tensors, in the order of their bytes."""
        return [tensor.name for header in self._open() for tensor in header.tensors]

    def metadata(self) -> dict[str, str] | None:
        """What the files say beside tensors; of a name that several have, what the last one says."""
        return {name: value for header in self._open() for name, value in header.metadata.items()} or None

    def get_tensor_meta(self, name: str) -> TensorMeta:
        """What the header says of a tensor."""
        header, tensor = self._find(name)
        fd = open_regular(header.path)
        try:
            begin = tensor.offset - 8 - int.from_bytes(read_exactly(fd, header.path, 8, 0), "little")
        finally:
            os.close(fd)
        return TensorMeta(tensor.dtype, list(tensor.shape), (begin, begin + tensor.length))

    def get_tensor(self, name: str) -> Any:
        """Reads a tensor."""
        return self._one(name, None)

    def get_tensors(self) -> dict[str, Any]:
        """Reads all tensors."""
        if not self.offset_keys():
            return {}
        with self.prefetch() as loader:
            return dict(loader)

    def get_slice(self, name: str) -> Slice:
        """A tensor that reads what it is indexed for."""
        return Slice(self, self._find(name)[1])

    def prefetch(self, plan: Plan | None = None, *, device: Any = None, threads: int = 8) -> PrefetchLoader:
        """Starts to read tensors, which the loader hands out as they arrive.

        plan    which tensors, and which rows of them; None: all, whole
        device  where they go; None: the device that was given to safe_open
        """
        headers = self._open()
        if plan is not None and not isinstance(plan, Mapping):
            raise InvalidError(f"the plan is a {type(plan).__name__}: give a dict of tensors' names, each with None or a slice of rows")
        wanted: Plan = dict.fromkeys(self.offset_keys()) if plan is None else plan
        if not wanted:
            raise InvalidError("the plan has no tensors: name some, or give None for all of them")
        cuts = {name: _rows(self._find(name)[1], rows) for name, rows in wanted.items()}
        chosen = [header for header in headers if any(tensor.name in cuts for tensor in header.tensors)]
        place = self._device if device is None else _device.name(_device.parse(device))
        return PrefetchLoader(Arriving(chosen, cuts, place, method=self._method, reader=self._reader))

    def _one(self, name: str, rows: slice | None) -> Any:
        with self.prefetch({name: rows}) as loader:
            return loader.take(name)

    def _open(self) -> Sequence[Header]:
        if self._headers is None:
            raise ClosedError("the files were closed: open them again")
        return self._headers

    def _find(self, name: str) -> tuple[Header, Tensor]:
        for header in self._open():
            for tensor in header.tensors:
                if tensor.name == name:
                    return header, tensor
        raise InvalidError(f"there is no tensor {name!r} in {', '.join(header.path for header in self._open())}")

    def __enter__(self) -> SafeOpen:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._headers = None


class Slice:
    """A tensor of a file. Indexing it reads the rows that the first index names, if that is a slice with the step 1, and all of it otherwise."""

    def __init__(self, files: SafeOpen, tensor: Tensor) -> None:
        self._files, self._tensor = files, tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        if isinstance(first, slice) and first.step in (None, 1) and self._tensor.shape:
            start, stop, _ = first.indices(self._tensor.shape[0])
            return self._files._one(self._tensor.name, slice(start, stop))[(slice(None), *rest)]
        return self._files.get_tensor(self._tensor.name)[index]


class PrefetchLoader:
    """Tensors on their way. Each is handed out once, by take() or by iterating."""

    def __init__(self, arriving: Arriving) -> None:
        self._arriving: Arriving | None = arriving
        self._names = dict.fromkeys(arriving.names, False)  # whether each was handed out

    def names(self) -> list[str]:
        """The names of all tensors of the plan, in the order of their bytes."""
        return list(self._names)

    def take(self, name: str) -> Any:
        """Waits until a tensor is there, and hands it out. Rows that were planned are the tensor."""
        if name not in self._names:
            raise InvalidError(f"{name!r} is not in the plan of this loader")
        if self._names[name]:
            raise InvalidError(f"tensor {name!r} was handed out before: a loader gives each once, by take() or by iterating")
        if self._arriving is None:
            raise ClosedError("the loader was closed: prefetch again")
        tensor = self._arriving.take(name)
        self._names[name] = True
        return tensor

    def close(self) -> None:
        """Stops reading, and gives up the tensors that were not taken. Others keep their memory."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.end()

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """The tensors that were not taken, with their names, as they arrive."""
        for name in self._names:
            if not self._names[name]:
                yield name, self.take(name)

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _rows(tensor: Tensor, rows: slice | None) -> Cut:
    """What a plan says of a tensor, checked as safetensors does."""
    if rows is None:
        return None
    name = tensor.name
    if not isinstance(rows, slice):
        raise InvalidError(f"the plan has {rows!r} for {name!r}: give None, or a slice of its first dimension")
    if not tensor.shape:
        raise InvalidError(f"{name!r} has no dimensions, so there are no rows of it: plan it with None")
    try:
        bounds = [None if bound is None else operator.index(bound) for bound in (rows.start, rows.stop)]
    except TypeError:
        raise InvalidError(f"the plan has {rows!r} for {name!r}: its bounds must be whole numbers or None") from None
    if rows.step not in (None, 1):
        raise InvalidError(f"the plan has a step of {rows.step!r} for {name!r}: only whole runs of rows are read")
    for bound in bounds:
        if bound is not None and abs(bound) > tensor.shape[0]:
            raise InvalidError(f"the plan has {rows!r} for {name!r}, which has {tensor.shape[0]} rows")
    cut: Any = _parts.wanted([tensor], {name: (slice(*bounds), *[slice(None)] * (len(tensor.shape) - 1))})[0]
    return cut  # type: ignore[no-any-return]
