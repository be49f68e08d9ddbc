"""Batches of samples, field by field: each field of a batch is one request to one array, of one set of samples or of several."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .._lib import _device
from .._lib.request import Request
from ..errors import DtypeError, InvalidError
from ._joined import Batch, Joined
from ._scatter import Scatter, Spans
from ._types import Ints

if TYPE_CHECKING:
    from ._open_fields import OpenField


class Samples(Protocol):
    """A set of samples, or a part of one: a SampleDataset."""

    path: str

    @property
    def fields(self) -> dict[str, dict[str, Any]]: ...
    @property
    def tensors(self) -> bool: ...
    def opened(self, name: str) -> OpenField: ...
    def numbers_of(self, samples: Ints) -> Ints: ...


class Ragged(NamedTuple):
    """A field whose samples have lengths of their own: sample i of the batch is values[offsets[i]:offsets[i + 1]].

    values   [elements], of the field's type
    offsets  int64 [batch_size + 1], where the values are; on a GPU without torch they stay on the host
    """

    values: Any
    offsets: Any

    def rows(self) -> list[Any]:
        """The values of each sample: views of the batch's memory. On a GPU this waits for the offsets."""
        at = self.offsets.tolist()
        return [self.values[a:b] for a, b in zip(at, at[1:], strict=False)]

    def nested(self) -> Any:
        """The batch as a nested tensor of torch, of layout jagged: a view of the same memory."""
        import torch

        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)


class SampleRows:
    """Begins the batches of a stream of samples. A batch is a dict: an array for each dense field, and Ragged for each other one."""

    def __init__(self, datasets: Sequence[Samples]) -> None:
        self._datasets = list(datasets)
        names = [list(d.fields) for d in datasets]
        if any(other != names[0] for other in names):
            said = ", ".join(f"{d.path}: {' '.join(own)}" for d, own in zip(datasets, names, strict=True))
            raise InvalidError(f"the sources have other fields ({said}): choose the same ones of each by fields=")
        self._fields = {name: _FieldRows(name, [d.opened(name) for d in datasets], datasets[0].tensors) for name in names[0]}

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU brings a field."""
        return any(field.on_gpu for field in self._fields.values())

    def __reduce__(self) -> tuple[Any, ...]:
        """Made again of the datasets, which multiprocessing's spawn opens again."""
        return SampleRows, (self._datasets,)

    def numbers_of(self, batch: Batch) -> Ints:
        """The samples of a batch, as their whole sets number them."""
        starts, sources = batch.spans.starts, batch.spans.sources
        if sources is None:
            return self._datasets[0].numbers_of(starts)
        numbers = starts.copy()
        for source, dataset in enumerate(self._datasets):
            own = sources == source
            numbers[own] = dataset.numbers_of(starts[own])
        return numbers

    def said(self, batch: Batch, at: int) -> str:
        """Names a sample of a batch."""
        sources = batch.spans.sources
        dataset = self._datasets[0 if sources is None else int(sources[at])]
        return f"sample {int(self.numbers_of(batch)[at])} of {dataset.path}"

    def begin_gather(self, batch: Batch, length: int = 0, *, dtype: Any = None) -> Joined:
        """Starts reading a batch. The other arguments are those of tokens."""
        del length, dtype
        numbers = self.numbers_of(batch)
        begins = [functools.partial(field.begin, numbers, batch.spans.sources) for field in self._fields.values()]
        return Joined.begin(begins, lambda got: dict(zip(self._fields, got, strict=True)))


class _FieldRows:
    """One field of all sources."""

    def __init__(self, name: str, opened: list[OpenField], tensors: bool) -> None:
        first, *others = opened
        for other in others:
            if (other.field.ragged, other.field.shape) != (first.field.ragged, first.field.shape):
                raise InvalidError(f"the sources have field {name!r} in other shapes: {first.said} and {other.said}")
            if other.dataset.dtype != first.dataset.dtype:
                raise DtypeError(f"the sources have field {name!r} of other types: {first.said} and {other.said}")
            if (other.device, other.dataset.device) != (first.device, first.dataset.device):
                said = " and ".join(f"{each.device} by {each.dataset.device}" for each in (first, other))
                raise InvalidError(f"the sources have field {name!r} on other devices: {said}")
        self._first, self._opened, self._tensors = first, opened, tensors
        self._scatter = Scatter.of([o.dataset for o in opened])
        self.on_gpu = first.dataset.device != "cpu"

    def begin(self, numbers: Ints, sources: NDArray[np.int32] | None) -> Any:
        """Starts reading the field of these samples."""
        first, n = self._first.field, len(numbers)
        starts, lengths = self._spans(numbers, sources)
        place, dtype = self._first.place(), self._first.dataset.dtype
        total = n * first.row if not first.ragged else int(lengths.sum())
        shape = (total,) if first.ragged else (n, *first.shape)
        array = place.allocate(shape, dtype)
        finish = self._ragged(lengths) if first.ragged else self._given
        if not total:
            return Request(None, array[0], finish)
        if self._scatter is None or not self._scatter.works():
            return self._apart(array[0], sources, starts, lengths, finish)
        spans = Spans(n, starts, sources, lengths if first.ragged else None)
        return self._scatter.begin(array, total, spans, first.row, finish=finish)

    def _spans(self, numbers: Ints, sources: NDArray[np.int32] | None) -> tuple[Ints, Ints]:
        if sources is None:
            return self._first.field.spans(numbers)
        starts, lengths = np.empty_like(numbers), np.empty_like(numbers)
        for source, opened in enumerate(self._opened):
            own = sources == source
            starts[own], lengths[own] = opened.field.spans(numbers[own])
        return starts, lengths

    def _apart(self, value: Any, sources: NDArray[np.int32] | None, starts: Ints, lengths: Ints, finish: Callable[[Any], Any]) -> Joined:
        """Starts a request for each stretch of samples of one source: in a forked child, and where readers have warnings of their own."""
        flat = value.reshape(-1)
        cuts = [0, *([] if sources is None else np.flatnonzero(np.diff(sources)) + 1), len(starts)]
        at = np.append(0, np.cumsum(lengths))

        def begin(a: int, b: int) -> Any:
            dataset = self._opened[0 if sources is None else int(sources[a])].dataset
            out = flat[int(at[a]) : int(at[b])]
            return dataset.begin_pieces(starts[a:b], lengths[a:b], tuple(out.shape), out=out)

        return Joined.begin([functools.partial(begin, int(a), int(b)) for a, b in zip(cuts, cuts[1:], strict=False)], lambda _: finish(value))

    def _given(self, value: Any) -> Any:
        """The form in which an array is handed out."""
        return value if self.on_gpu or self._first.pinned else _device.array_on_host(value, self._tensors)

    def _ragged(self, lengths: Ints) -> Callable[[Any], Ragged]:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])

        def finish(value: Any) -> Ragged:
            value = self._given(value)
            if isinstance(value, np.ndarray) or not hasattr(value, "is_cuda"):
                return Ragged(value, offsets)
            import torch

            own = torch.from_numpy(offsets)
            return Ragged(value, own.to(value.device, non_blocking=True) if value.is_cuda else own)

        return finish
