"""How a rank's part of a checkpoint lies in its file: entries one behind the other, each as torch.save writes it.

An entry is bytes, or a tensor in its frame (_torch_zip). The elements of a tensor of LARGE bytes or more begin at a multiple
of ALIGNMENT in the file, those of smaller ones at a multiple of 64, as torch has them. Bytes between two entries are zeros.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .._lib.writer import FilePart, OutFile
from ._torch_zip import frame

ALIGNMENT = 4096
"""For O_DIRECT and DMA, of every disk's block and of every page."""
LARGE = 64 << 10
"""Bytes of a tensor whose elements are aligned. Aligning smaller ones would make a file of many of them much longer."""
PIECE = 64 << 20
"""Bytes of device memory that bringing a tensor into one piece may take at a time."""


class Place(NamedTuple):
    """Where an entry lies in its file, in bytes."""

    offset: int
    length: int


def lay(name: str, entries: Sequence[bytes | torch.Tensor]) -> tuple[OutFile, list[Place]]:
    """Lays entries into a file, small ones first, and gives each one's place. The tensors are used as they are, so they must be dense()."""
    places = [Place(0, 0)] * len(entries)
    parts: list[FilePart] = []
    end = 0

    def put(offset: int, data: bytes | torch.Tensor) -> None:
        nonlocal end
        parts.append(FilePart(offset, data))
        end = offset + (len(data) if isinstance(data, bytes) else data.nbytes)

    for number in sorted(range(len(entries)), key=lambda number: _is_large(entries[number])):
        entry, begin = entries[number], end
        if isinstance(entry, bytes):
            if entry:
                put(begin, entry)
        else:
            around = frame(entry.dtype, tuple(entry.size()), entry.stride())
            alignment = ALIGNMENT if _is_large(entry) else 64
            begin += -(begin + len(around.head)) % alignment
            put(begin, around.head)
            if entry.numel():
                put(end, entry.as_strided((entry.numel(),), (1,)))
            put(end, around.tail)
        places[number] = Place(begin, end - begin)
    return OutFile(name, end, parts), places


def dense(tensor: torch.Tensor) -> bytes | torch.Tensor:
    """Gives a tensor whose elements fill its memory: itself, or a copy in host memory if there are gaps or repetitions. A tensor
    without a frame (sparse, quantized, or of another class) becomes the bytes that torch.save writes."""
    tensor = tensor.detach()
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized:
        written = io.BytesIO()
        torch.save(tensor.cpu(), written)
        return written.getvalue()
    if _fills(tensor) and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    copy = torch.empty(tensor.size(), dtype=tensor.dtype, device="cpu")
    if tensor.numel():
        # torch copies strided tensors within the device first: piece by piece that takes little of its memory.
        longest = max(range(tensor.dim()), key=tensor.size, default=None)
        pieces = math.ceil(tensor.nbytes / PIECE)
        if longest is None or pieces == 1:
            copy.copy_(tensor)
        else:
            for to, source in zip(copy.chunk(pieces, longest), tensor.chunk(pieces, longest), strict=True):
                to.copy_(source)
    return copy


def _is_large(entry: bytes | torch.Tensor) -> bool:
    return isinstance(entry, torch.Tensor) and entry.nbytes >= LARGE


def _fills(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements lie one behind the other, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size != 1):
        if stride != expected and tensor.numel():
            return False
        expected *= size
    return True
