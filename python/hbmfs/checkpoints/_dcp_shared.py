"""Bytes of a checkpoint that several ranks want: one of them reads each byte, and gives it to the others.

Every rank says which blocks of which files it wants. Blocks that two or more want are put into waves, in an order that is
the same on all ranks. The bytes of a wave are divided evenly among its ranks: several of them read a large block, one of
them a small one. A block comes straight into its target, if that is to hold the very bytes of the file. Others come into
scratch memory: a rank has that of three waves at most, the next one waits until the first of them is whole.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .._lib import _device
from .._lib._transfer import Transfer
from ..errors import GroupError
from ._dcp_reads import BATCH, GAP, SMALL, Sources, Want, room

if TYPE_CHECKING:
    from ..group._group import Exchange, Team

SHARE = 64 << 20
"""Most bytes that each rank reads for one wave."""
SCRATCH = 64 << 20
"""Most bytes of a wave that may need scratch memory."""
UNITS = 256
"""Most blocks of one wave."""
EVEN = 512
"""Bytes of which shares of a block are multiples."""


class Block(NamedTuple):
    """Bytes of a file, by the name that it has in the checkpoint."""

    name: str
    begin: int
    end: int


class Span(NamedTuple):
    """Bytes of a file that are read together: one block, or small ones that are near each other."""

    blocks: list[Block]
    begin: int
    end: int
    scratch: bool

    @property
    def length(self) -> int:
        return self.end - self.begin


class Ranges:
    """The bytes of files that ranks want."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        files: dict[str, list[tuple[int, int]]] = {}
        for block in blocks:
            files.setdefault(block.name, []).append((block.begin, block.end))
        self._begins = {name: [begin for begin, _ in sorted(ranges)] for name, ranges in files.items()}
        self._ends = {name: list(accumulate((end for _, end in sorted(ranges)), max)) for name, ranges in files.items()}

    def free(self, name: str, begin: int, end: int) -> bool:
        """Whether nobody wants a byte of [begin, end)."""
        before = bisect_left(self._begins.get(name, ()), end)
        return before == 0 or self._ends[name][before - 1] <= begin


class Agreement:
    """The blocks that the ranks of a team want of a checkpoint, and which of them are shared. Every rank makes it."""

    def __init__(self, team: Team, save: Any, sizes: dict[str, int], names: dict[str, str], wants: Sequence[Want]) -> None:
        """save     names the checkpoint, if it has a name
        sizes    of the files that this rank reads, by their names in it
        names    of files, by path
        """
        self._team = team
        device = _device.CPU if team.device.type == "cpu" else team.device.index
        self._mine: dict[Block, list[Want]] = {}
        self._names = names
        for want in wants:
            if want.device == device:
                self._mine.setdefault(_block(want, names), []).append(want)
        said: dict[str, list[list[int]]] = {}
        for block, inside in self._mine.items():
            said.setdefault(block.name, []).append([block.begin, block.end, int(_plain(block, inside) is None)])
        ranks: dict[Block, list[int]] = {}
        self._scratch: set[Block] = set()
        all_blocks = []
        for rank, text in enumerate(team.gather(json.dumps({"save": save, "sizes": sizes, "blocks": said}))):
            other = json.loads(text)
            self._compare(rank, save, sizes, other)
            for name, blocks in other["blocks"].items():
                for begin, end, scratch in blocks:
                    block = Block(name, begin, end)
                    ranks.setdefault(block, []).append(rank)
                    all_blocks += [block] if rank != team.rank else []
                    self._scratch |= {block} if scratch else set()
        self._theirs = Ranges(all_blocks)
        self._all = Ranges(ranks)
        self._ranks = {block: tuple(found) for block, found in ranks.items() if len(found) > 1 and team.rank in found}
        self.alone = [want for want in wants if _block(want, names) not in self._ranks or want.device != device]

    def _compare(self, rank: int, save: Any, sizes: dict[str, int], other: dict[str, Any]) -> None:
        if save is not None and other["save"] is not None and save != other["save"]:
            raise GroupError(
                f"the ranks of the group load different checkpoints: rank {rank} loads another one than rank {self._team.rank}: give all of them the same path"
            )
        for name in sorted(sizes.keys() & other["sizes"].keys()):
            if sizes[name] != other["sizes"][name]:
                raise GroupError(
                    f"the ranks of the group do not see the same files: {name} has {sizes[name]} bytes on rank {self._team.rank} and {other['sizes'][name]} "
                    f"on rank {rank}: give all of them the same path"
                )

    def free(self, path: str, begin: int, end: int) -> bool:
        """Whether no other rank wants a byte of [begin, end) of a file."""
        return self._theirs.free(self._names[path], begin, end)

    def waves(self) -> Iterator[tuple[tuple[int, ...], list[Span]]]:
        """The ranks and the spans of each wave of this rank. Ranks that share waves have them in the same order."""
        groups: dict[tuple[int, ...], list[Block]] = {}
        for block in sorted(self._ranks):
            groups.setdefault(self._ranks[block], []).append(block)
        for ranks in sorted(groups):
            wave: list[Span] = []
            for span in self._spans(groups[ranks]):
                full = wave and sum(other.length for other in wave) + span.length > SHARE * len(ranks)
                crowded = span.scratch and sum(other.length for other in wave if other.scratch) + span.length > SCRATCH
                if full or (wave and crowded) or len(wave) == UNITS:
                    yield ranks, wave
                    wave = []
                wave.append(span)
            yield ranks, wave

    def _spans(self, blocks: Sequence[Block]) -> Iterator[Span]:
        """Puts small blocks together, if little lies between them, and nothing that any rank wants."""
        span: Span | None = None
        for block in blocks:
            small = block.end - block.begin <= SMALL
            if span is not None and small and self._follows(span, block):
                span = Span([*span.blocks, block], span.begin, max(span.end, block.end), True)
                continue
            if span is not None:
                yield span
            span = Span([block], block.begin, block.end, block in self._scratch)
        if span is not None:
            yield span

    def _follows(self, span: Span, block: Block) -> bool:
        last = span.blocks[-1]
        near = block.begin <= span.end + GAP and block.end - span.begin <= BATCH and last.end - last.begin <= SMALL
        return last.name == block.name and near and (block.begin <= span.end or self._all.free(block.name, span.end, block.begin))

    def wants(self, block: Block) -> list[Want]:
        """This rank's parts of a block."""
        return self._mine[block]


def _block(want: Want, names: dict[str, str]) -> Block:
    begin = want.base + want.block.offset
    return Block(names[want.path], begin, begin + want.block.length)


def _plain(block: Block, wants: Sequence[Want]) -> Want | None:
    """The part whose target is to hold the very bytes of the block, if it is the only one."""
    (want, *others) = wants
    return want if not others and want.part.length == block.end - block.begin and want.is_plain() else None


class _Shared:
    """Reads this rank's shares of waves, and copies blocks that are whole to their targets."""

    def __init__(self, team: Team, agreed: Agreement, exchange: Exchange, transfer: Transfer, sources: Sources) -> None:
        self._team, self._agreed, self._exchange = team, agreed, exchange
        self._transfer, self._sources = transfer, sources
        self._scratch = 0

    def read(self, key: str, ranks: tuple[int, ...], spans: Sequence[Span]) -> None:
        from ..group._group import Unit, Wave

        units, rooms, me = [], [], ranks.index(self._team.rank)
        needs = sum(span.length for span in spans if self._needs_room(span))
        self._transfer.until(lambda: self._scratch == 0 or self._scratch + needs <= 3 * SCRATCH)
        self._scratch += needs
        for span, borders in zip(spans, shares(spans, len(ranks)), strict=True):
            first = self._agreed.wants(span.blocks[0])[0]
            if self._needs_room(span):
                memory = room(span.length, first.device)
                rooms.append((span, memory))
            else:
                memory = first.target.as_strided((first.target.numel(),), (1,)).view(torch.uint8)
            begin, end = borders[me], borders[me + 1]
            if begin < end:
                self._transfer.read(self._sources.file(first.device, first.path), memory.data_ptr() + begin, span.begin + begin, end - begin)
            units.append(Unit(memory, ranks, borders))

        def whole() -> None:
            for span, memory in rooms:
                for block in span.blocks:
                    for want in self._agreed.wants(block):
                        want.take(memory, span.begin)
            if rooms and self._team.device.type == "cuda":
                # The bytes of later waves may come to lie where these were, and NCCL waits for no stream of the caller.
                torch.cuda.current_stream(self._team.device).synchronize()
            self._scratch -= needs
            for span in spans:
                if not self._needs_room(span):
                    self._agreed.wants(span.blocks[0])[0].commit()

        self._transfer.then(lambda: self._exchange.have(Wave(key, ranks, units, whole)))

    def _needs_room(self, span: Span) -> bool:
        return len(span.blocks) > 1 or _plain(span.blocks[0], self._agreed.wants(span.blocks[0])) is None


def shares(spans: Sequence[Span], ranks: int) -> list[tuple[int, ...]]:
    """Where the shares of each span begin, and its end: each rank has as much of all of them together."""
    each = -(-sum(span.length for span in spans) // ranks)
    found, at = [], 0
    for span in spans:
        cuts = [min(max(each * rank - at, 0), span.length) for rank in range(ranks)]
        found.append((*(cut if cut == span.length else cut // EVEN * EVEN for cut in cuts), span.length))
        at += span.length
    return found


def read(team: Team, agreed: Agreement, exchange: Exchange, transfer: Transfer, sources: Sources) -> None:
    """Begins reading this rank's share of all waves. They are whole when the exchange has waited."""
    shared = _Shared(team, agreed, exchange, transfer, sources)
    if team.device.type == "cuda":
        torch.cuda.current_stream(team.device).synchronize()  # targets may still be in use there
    for ranks, spans in agreed.waves():
        first = spans[0]
        shared.read(f"{'+'.join(map(str, ranks))}/{first.begin}/{first.blocks[0].name}", ranks, spans)


def size(team: Team, agreed: Agreement) -> int:
    """The bytes that this rank reads."""
    total = sum(want.part.length for want in agreed.alone)
    for ranks, spans in agreed.waves():
        me = ranks.index(team.rank)
        total += sum(borders[me + 1] - borders[me] for borders in shares(spans, len(ranks)))
    return total


def device(group: Any, given: int | None) -> int:
    """The device whose memory a group shares: the one that was given, the current GPU for NCCL, or the host."""
    if given is not None:
        return given
    return _device.parse("cuda") if torch.cuda.is_available() and "nccl" in str(torch.distributed.get_backend_config(group)) else _device.CPU
