"""Tensors that are filled in place, and the checks of them before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .._lib import _device
from ..errors import TargetError
from ._load import DTYPES
from ._parts import Cut, Skip
from .safetensors_header import Tensor

SHOWN = 10
"""Most differences, or names, that a message has."""
LONGEST = 120
"""Most letters of one of them."""


class Target(NamedTuple):
    """A tensor to fill."""

    tensor: torch.Tensor
    device: int
    straight: bool  # its memory is to hold the very bytes of the file, one after the other

    def bytes(self) -> torch.Tensor:
        """Its memory as bytes, where they are the file's."""
        return self.tensor.view(-1).view(torch.uint8)

    def filled(self) -> None:
        """Tells autograd that its memory was written to."""
        if not self.tensor.is_inference():
            torch.autograd.graph.increment_version(self.tensor)


def fill(into: Sequence[Target], values: Sequence[torch.Tensor], view: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """Copies bytes to targets that have come elsewhere. view gives the elements of those of a target, by its number."""
    with torch.no_grad(), torch.inference_mode(any(target.tensor.is_inference() for target in into)):
        same = [(target.bytes(), value) for target, value in zip(into, values, strict=True) if target.straight]
        if into[0].device != _device.CPU and same:  # as bytes, since this call changes NaNs of bfloat16
            torch._foreach_copy_([to for to, _ in same], [value for _, value in same])
        else:
            for to, value in same:
                np.copyto(to.numpy(), value.numpy())  # torch wakes all its threads for each
        for number, target in enumerate(into):
            if not target.straight:
                target.tensor.copy_(view(values[number], number))


def place_of(value: Any) -> int | None:
    """The device of a tensor; None where it can be on none."""
    if isinstance(value, np.ndarray):
        return _device.CPU
    kind = value.device.type if isinstance(value, torch.Tensor) else ""
    return {"cpu": _device.CPU, "cuda": int(value.device.index or 0) if kind == "cuda" else 0}.get(kind)


def given(into: Any) -> dict[str, Any]:
    """The tensors of a mapping or a module. Extra state of modules is not a tensor of the file."""
    if isinstance(into, torch.nn.Module):
        return {name: value for name, value in into.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}
    return dict(into)


def bounded(items: Sequence[str]) -> str:
    """Some of many, for a message."""
    some = [item if len(item) <= LONGEST else f"{item[: LONGEST // 2]}...{item[-LONGEST // 2 :]}" for item in items[:SHOWN]]
    more = len(items) - len(some)
    return "; ".join(some) + (f"; and {more} more" if more else "")


def targets(every: Mapping[str, Any], tensors: Sequence[Tensor], cuts: Sequence[Cut | Skip], names: Any, cast: bool, device: int | None) -> dict[str, Target]:
    """The targets of tensors. TargetError, with all differences at once, where one cannot be filled.

    Of names that are one tensor in memory (tied parameters), the last in `into` that the file has is filled, as load_state_dict leaves it.
    """
    chosen = every if names is None else {name: value for name, value in every.items() if (names(name) if callable(names) else name in _names(names))}
    wanted = {tensor.name: (tensor, cut) for tensor, cut in zip(tensors, cuts, strict=True) if not isinstance(cut, Skip)}
    skipped = {tensor.name for tensor, cut in zip(tensors, cuts, strict=True) if isinstance(cut, Skip)}
    found, differences = dict[str, Target](), list[str]()
    plain = {name: _plain(value) for name, value in chosen.items() if name not in skipped}
    for name in sorted(wanted.keys() - plain.keys()):
        differences.append(f"{name!r} is in the file, and into has no tensor of this name")
    same = _same({name: value for name, value in plain.items() if isinstance(value, torch.Tensor)})
    for name, value in plain.items():
        if name not in wanted:
            if not any(other in wanted for other in same.get(name, ())):
                differences.append(f"{name!r} is in into, and not in the file")
            continue
        if isinstance(value, str):
            differences.append(f"{name!r} {value}")
            continue
        there = place_of(value)
        assert there is not None
        if device is not None and there != device:
            differences.append(f"{name!r} is on {value.device}, and device= says {_device.name(device)}")
        wrong, straight = _compared(value, *wanted[name], cast)
        differences += [f"{name!r} {one}" for one in wrong]
        found[name] = Target(value, there, straight)
    last = [name for name in found if name == [other for other in same[name] if other in found][-1]]
    found = {name: found[name] for name in last}
    differences += _overlaps(found)
    if differences:
        error = TargetError(f"the tensors of into are not as the file has them, and nothing was changed: {bounded(differences)}")
        error.differences = tuple(differences)
        raise error
    return found


def _names(names: Iterable[str]) -> set[str]:
    return {names} if isinstance(names, str) else set(names)


def _plain(value: Any) -> torch.Tensor | str:
    """A tensor that is nothing but memory, or why it is none."""
    if isinstance(value, np.ndarray):
        try:
            return torch.from_numpy(value) if value.flags.writeable else "cannot be written to"
        except (TypeError, ValueError) as err:
            return f"is an array that torch cannot take: {err}"
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}, and no tensor"
    if isinstance(value, torch.nn.parameter.UninitializedTensorMixin):
        return "has no shape yet: run the module once"
    if value.is_meta:
        return 'is on the meta device and has no memory: give it some, such as by module.to_empty(device="cuda")'
    if value.device.type not in ("cpu", "cuda"):
        return f"is on {value.device}: only memory of the host and of CUDA can be filled"
    if value.layout != torch.strided or value.is_quantized:
        return f"is {'quantized' if value.is_quantized else value.layout}, and no plain memory"
    if hasattr(value, "to_local"):
        return "is a DTensor: give its to_local(), and slices= of this rank"
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a {type(value).__name__}, whose memory is not known"
    value = value.detach()
    if value.is_conj() or value.is_neg():
        return "is a lazy conjugate or negative of its memory: resolve it first"
    return value


def _compared(value: torch.Tensor, tensor: Tensor, cut: Cut, cast: bool) -> tuple[list[str], bool]:
    """The differences between a target and the file, and whether the target takes the file's bytes as they are."""
    dtype: torch.dtype = getattr(torch, DTYPES[tensor.dtype])
    shape = tensor.shape if cut is None or isinstance(cut, Skip) else tuple(count for _, count, _ in cut)
    if tensor.dtype == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    wrong = []
    if tuple(value.shape) != shape:
        wrong.append(f"has the shape {list(value.shape)}, and {'what slices say of it' if cut else 'the file'} has {list(shape)}")
    if value.dtype != dtype and not cast:
        wrong.append(f"is of {_word(value.dtype)}, and the file has {_word(dtype)}: give cast=True to convert")
    elif value.dtype != dtype and (why := _uncastable(dtype, value)):
        wrong.append(f"is of {_word(value.dtype)}, to which the file's {_word(dtype)} is not converted: {why}")
    contiguous = value.is_contiguous()
    if not contiguous and _overlaps_itself(value):
        wrong.append("has elements that share memory, as expand() makes them")
    return wrong, value.dtype == dtype and contiguous


def _uncastable(dtype: torch.dtype, value: torch.Tensor) -> str | None:
    if not torch.can_cast(dtype, value.dtype):
        return "that would lose more than precision"
    try:
        torch.zeros(1, dtype=dtype, device=value.device).to(value.dtype)
    except (RuntimeError, NotImplementedError) as err:
        return str(err).splitlines()[0]
    return None


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _extent(value: torch.Tensor) -> tuple[int, int]:
    """Where its memory begins and ends."""
    begin = value.data_ptr()
    if value.is_contiguous():
        return begin, begin + value.nbytes
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return begin, begin + (last + 1) * value.element_size()


def _overlaps_itself(value: torch.Tensor) -> bool:
    end = 0  # the last element of the inner dimensions
    for stride, size in sorted((stride, size) for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1):
        if stride <= end:
            return value.numel() > 0
        end += (size - 1) * stride
    return False


def _same(tensors: Mapping[str, torch.Tensor]) -> dict[str, list[str]]:
    """Of each name those that are the same memory."""
    known: dict[Any, list[str]] = {}
    of = {}
    for name, value in tensors.items():
        key: Any = (value.data_ptr(), value.dtype, value.shape, value.stride(), value.device) if value.numel() else name
        known.setdefault(key, []).append(name)
        of[name] = known[key]
    return of


def _overlaps(into: Mapping[str, Target]) -> Iterator[str]:
    """Pairs that share memory, but are not the same."""
    active: list[tuple[int, str]] = []
    for device, begin, end, name in sorted((target.device, *_extent(target.tensor), name) for name, target in into.items() if target.tensor.numel()):
        active = [(last, other) for last, other in active if last > begin and into[other].device == device]
        for _, other in active:
            if not _apart(into[name].tensor, into[other].tensor):
                yield f"{name!r} and {other!r} overlap in memory"
        active.append((end, name))


def _apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors share no element, though one begins before the other ends: as columns of one matrix."""
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr() or one.dtype != other.dtype or one.stride() != other.stride():
        return False
    boxes = [_box(value) for value in (one, other)]
    return all(box is not None for box in boxes) and any(
        a + n <= b or b + m <= a for (a, n), (b, m) in zip(*[box for box in boxes if box is not None], strict=True)
    )


def _box(value: torch.Tensor) -> list[tuple[int, int]] | None:
    """The first index and the number of indices in each dimension of the tensor that it was cut out of, from the outermost on."""
    at, box, around = value.storage_offset(), [], None
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True), reverse=True):
        if stride < 1:
            return None
        first, at = divmod(at, stride)
        if around is not None and (around % stride or first + size > around // stride):
            return None
        box.append((first, size))
        around = stride
    return box
