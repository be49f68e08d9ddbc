"""Filling tensors that are there: the engine writes straight to their memory.

Tensors of another dtype, or with gaps, come by way of scratch memory, SCRATCH at a time. So do small ones that follow each other in a file. In a group each rank reads a share of a tensor, and the
exchange completes it in place; small tensors, and the few bytes that make no even shares, are read by every rank.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._lib import _device
from .._lib._transfer import Transfer, uncache
from ..errors import DeviceError, UndefinedError
from . import _load, _model_files, _parts
from ._load import Call, Load, Opening, Torch
from ._targets import Target, bounded, fill, given, place_of, targets

if TYPE_CHECKING:
    from .._lib.reader import File
    from ..group._group import Exchange, Team
    from ._parts import Place
    from .safetensors_header import Header

SCRATCH = 512 << 20
"""Most scratch memory, but for a tensor that is larger."""
ALONE = 64 << 10
"""Bytes of a rank's share of a tensor; a tensor with smaller shares is read by every rank."""
EVEN = 16
"""Bytes of which shares are multiples."""


def load(call: Call, into: Any, cast: bool) -> dict[str, Any]:
    """Fills the tensors, or leaves all as they are, or says which are undefined."""
    filling = Filling(given(into), cast)
    try:
        return call.together(_device_of(call, filling.into), functools.partial(_run, call, filling))
    except BaseException as err:
        if undefined := filling.undefined():
            filling.explain(err, undefined)
        raise


def _device_of(call: Call, into: Mapping[str, Any]) -> int:
    """The device whose memory a group exchanges: that of the targets."""
    if call.device is not None or call.group is None:
        return call.index()
    places = {str(value.device) for value in into.values() if isinstance(value, torch.Tensor)} or {"cpu"}
    if len(places) > 1:
        raise DeviceError(f"the tensors of into are on {', '.join(sorted(places))}: a group fills tensors of one device, so call it for each")
    return _device.parse(places.pop())


class Filling:
    """Which targets are being filled, and which are full."""

    def __init__(self, into: Mapping[str, Any], cast: bool) -> None:
        self.into, self.cast = into, cast
        self.targets: dict[str, Target] = {}
        self._begun: dict[str, None] = {}
        self._full: set[str] = set()

    def begin(self, name: str) -> Target:
        self._begun[name] = None
        return self.targets[name]

    def full(self, name: str) -> None:
        self.targets[name].filled()
        self._full.add(name)

    def undefined(self) -> tuple[str, ...]:
        return tuple(name for name in self._begun if name not in self._full)

    def explain(self, err: BaseException, undefined: tuple[str, ...]) -> None:
        """Raises UndefinedError. KeyboardInterrupt and its like stay, with the names as an attribute."""
        if not isinstance(err, Exception):
            err.undefined = undefined  # type: ignore[attr-defined]
            return
        untouched = len(self.targets) - len(self._begun)
        error = UndefinedError(
            f"{err}; {len(undefined)} tensors are undefined now, {len(self._full)} have their new values and {untouched} their old ones. Undefined: {bounded(undefined)}"
        )
        error.undefined = undefined
        raise error from err


class _Device(NamedTuple):
    """The loads into the memory of one device."""

    library: Torch
    loads: list[Load]
    files: list[File]


def _run(call: Call, filling: Filling, device: int, team: Team | None) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        likely = {device} if team is not None else {place for value in filling.into.values() if (place := place_of(value)) is not None}
        openings = {place: stack.enter_context(Opening(place, call.method, team)) for place in likely if call.reader is None}
        headers = _model_files.headers(call.path, call.names)
        tensors = [tensor for header in headers for tensor in header.tensors]
        library = Torch("cpu")
        for tensor in tensors:
            library.check(tensor)
        only = device if call.device is not None or team is not None else None
        cuts = _parts.wanted(tensors, call.slices)
        filling.targets = targets(filling.into, tensors, cuts, call.names, filling.cast, only)
        places = sorted({target.device for target in filling.targets.values()})
        if call.reader is not None and places not in ([], [call.reader.device]):
            raise DeviceError(f"the reader is for {_device.name(call.reader.device)} and tensors of into are on {', '.join(map(_device.name, places))}")
        if team is not None:
            places = [device]
        skipped = {tensor.name for tensor, cut in zip(tensors, cuts, strict=True) if team is not None and isinstance(cut, _parts.Skip)}
        parts = [_prepare(call, filling, stack, headers, skipped, place, openings.get(place), team) for place in places]
        for part in parts:
            exchange = None if team is None else stack.enter_context(_load.exchange_of(team))
            _read(part, filling, call, exchange)
            if part.library.is_cuda:
                torch.cuda.current_stream(part.library.device).synchronize()  # copies out of scratch memory
        uncache([file for part in parts for file in part.files], call.page_cache, team)
        if openings:
            _load.close_behind(stack, call.path)
        return {tensor.name: filling.into[tensor.name] for tensor, cut in zip(tensors, cuts, strict=True) if not isinstance(cut, _parts.Skip)}


def _prepare(
    call: Call,
    filling: Filling,
    stack: contextlib.ExitStack,
    headers: Sequence[Header],
    skipped: set[str],
    device: int,
    opening: Opening | None,
    team: Team | None,
) -> _Device:
    """Opens the files that one device needs. Ranks also agree on tensors that some of them skip."""
    here = skipped | {name for name, target in filling.targets.items() if target.device == device}
    mine = [header._replace(tensors=tuple(tensor for tensor in header.tensors if tensor.name in here)) for header in headers]
    mine = [header for header in mine if header.tensors]
    slices = call.slices
    if slices is not None and not callable(slices):
        slices = slices.get
    loads = _load.loads_of(mine, slices, team, apart=True)
    reader = call.reader if opening is None else opening.result()
    assert reader is not None
    return _Device(Torch(_device.name(device)), loads, _load.open_files(stack, reader, mine))


class _Span(NamedTuple):
    """Bytes [begin, end) of a block: those of its even shares, which end at `even`, and the rest."""

    block: int
    begin: int
    even: int
    end: int

    def borders(self, ranks: int) -> list[int]:
        each = (self.even - self.begin) // ranks
        return [self.begin + each * number for number in range(ranks + 1)]


def _spans(load: Load) -> Iterator[_Span]:
    ranks = len(load.ranks)
    step = _load.SHARE * ranks
    for block, size in enumerate(load.layout.blocks):
        for begin in range(0, size, step if ranks > 1 else size):
            end = min(begin + step, size) if ranks > 1 else size
            each = (end - begin) // ranks // EVEN * EVEN
            yield _Span(block, begin, begin + (each * ranks if ranks > 1 and each >= ALONE else 0), end)


def _windows(load: Load) -> Iterator[list[_Span]]:
    """Spans that are exchanged at once; alone, each by itself."""
    window, size = list[_Span](), 0
    for span in _spans(load):
        window.append(span)
        size += span.end - span.begin
        if len(load.ranks) == 1 or size >= _load.SHARE * len(load.ranks):
            yield window
            window, size = [], 0
    if window:
        yield window


def _own(load: Load, span: _Span) -> Iterator[tuple[int, int]]:
    """The pieces of a span that this rank reads."""
    borders = span.borders(len(load.ranks))
    if span.even > span.begin:
        yield borders[load.me], borders[load.me + 1]
    if span.even < span.end:
        yield span.even, span.end


def _bytes(load: Load) -> int:
    if load.matrices:
        return int(_load.columns().size(load.matrices, load.ranks, load.me))
    return sum(end - begin for span in _spans(load) for begin, end in _own(load, span))


def _read(part: _Device, filling: Filling, call: Call, exchange: Exchange | None) -> None:
    """Reads this rank's share of one device's tensors, and waits for the shares of the others."""
    ends, blocks = list[Callable[[], None]](), list[_Blocks]()
    try:
        with Transfer(sum(map(_bytes, part.loads)), call.progress, "weights", None if exchange is None else exchange.check) as transfer:
            for load in part.loads:
                if not load.matrices:
                    blocks.append(_Blocks(part, load, filling, transfer, exchange))
                    blocks[-1].read()
                    continue
                assert exchange is not None
                memory = []
                for place in load.layout.places:
                    target = filling.begin(place.part.tensor.name)
                    memory.append(target.bytes() if target.straight else part.library.allocate(place.part.length))
                    ends.append(functools.partial(_fill, part.library, filling, [place], memory[-1]))
                _load.columns().read(load.matrices, load.ranks, load.me, part.files, memory, part.library.allocate, transfer, exchange)
    except BaseException:
        for each in blocks:
            each.memory.clear()  # now that no read goes on; the traceback keeps these objects, which must not keep the memory
        raise
    if exchange is not None:
        exchange.wait()
    for end in ends:
        end()


def _fill(library: Torch, filling: Filling, places: Sequence[Place], memory: Any) -> None:
    """Notes that the bytes of tensors have come, and copies them to their targets where they are elsewhere."""
    if not _straight(filling, places):
        into = [filling.targets[place.part.tensor.name] for place in places]
        fill(into, memory.split([place.part.length for place in places]), lambda value, number: library.view(value, places[number].part))
    for place in places:
        filling.full(place.part.tensor.name)


def _straight(filling: Filling, places: Sequence[Place]) -> bool:
    """Whether the bytes of a block come straight to its one target."""
    return len(places) == 1 and filling.targets[places[0].part.tensor.name].straight


class _Blocks:
    """The blocks of one load: a target's memory, or scratch memory of one or several."""

    def __init__(self, part: _Device, load: Load, filling: Filling, transfer: Transfer, exchange: Exchange | None) -> None:
        self._part, self._load, self._filling, self._transfer, self._exchange = part, load, filling, transfer, exchange
        self._places: dict[int, list[Place]] = {}
        for place in load.layout.places:
            self._places.setdefault(place.block, []).append(place)
        self.memory: dict[int, Any] = {}
        self._scratch = 0  # bytes in use
        self._goes_on = 0  # of them those of a tensor of which not all was begun

    def read(self) -> None:
        for place in self._places.get(-1, ()):  # there are no bytes to come
            self._filling.begin(place.part.tensor.name)
            self._filling.full(place.part.tensor.name)
        for window in _windows(self._load):
            self._make_room(sum(self._size(span) for span in window if span.begin == 0))
            for span in window:
                self._make(span)
                for begin, end in _own(self._load, span):
                    reads = self._load.layout.within(span.block, begin, end)
                    _load.begin_reads(reads, self._part.library.pointer(self.memory[span.block]), self._part.files, self._transfer)
            self._goes_on = self._size(window[-1]) if window[-1].end < self._load.layout.blocks[window[-1].block] else 0
            if len(self._load.ranks) == 1:
                self._transfer.then(functools.partial(self._whole, window))
            else:
                self._transfer.then(functools.partial(self._give, window))

    def _make_room(self, size: int) -> None:
        """Waits for scratch memory of a window. A window of several ranks is not divided for that: all of them have the same ones.

        That of a tensor which goes on in this window does not come free before.
        """
        if size:
            self._transfer.until(lambda: self._scratch == self._goes_on or self._scratch + size <= SCRATCH)
            self._scratch += size

    def _size(self, span: _Span) -> int:
        """The scratch memory of a span's block."""
        return 0 if _straight(self._filling, self._places[span.block]) else self._load.layout.blocks[span.block]

    def _make(self, span: _Span) -> None:
        """Makes memory for the block that begins with a span."""
        if span.begin == 0:
            targets_of = [self._filling.begin(place.part.tensor.name) for place in self._places[span.block]]
            size = self._size(span)
            self.memory[span.block] = self._part.library.allocate(size) if size else targets_of[0].bytes()

    def _give(self, spans: list[_Span]) -> None:
        """Gives spans to the exchange, once this rank has read its shares of them."""
        from ..group._group import Unit, Wave

        assert self._exchange is not None
        ranks = self._load.ranks
        units = [
            Unit(self.memory[span.block][span.begin : span.even], ranks, tuple(border - span.begin for border in span.borders(len(ranks))))
            for span in spans
            if span.even > span.begin
        ]
        key = f"into {'+'.join(map(str, ranks))}/{spans[0].block}/{spans[0].begin}"
        self._exchange.have(Wave(key, ranks, units, functools.partial(self._whole, spans)))

    def _whole(self, spans: list[_Span]) -> None:
        for span in spans:
            if span.end == self._load.layout.blocks[span.block]:
                _fill(self._part.library, self._filling, self._places[span.block], self.memory.pop(span.block))
                self._scratch -= self._size(span)
