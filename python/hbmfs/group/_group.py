"""Ranks of a torch.distributed group that load together: each reads its share of the bytes, once, and gives it to the others.

    with Team(group, device, "weights") as team:
        said = team.gather("...")               # the data of every rank, by rank
        with Exchange(team) as exchange:
            ...                                 # read this rank's share of a unit
            exchange.have(Wave("block 0", ranks, [unit]))
            exchange.wait()                     # every unit is whole on every rank that wants it

Bytes go from GPU to GPU by the group's own backend (NCCL; gloo on CPUs). Everything else goes through the group's store,
on one thread: messages of ranks, the units that they have read, signs of life, and the first failure. A wave of units is
exchanged only when all its ranks have read their shares, so a rank that fails while it reads leaves no collective behind.

All ranks end with the first failure. A rank that says nothing for SILENCE seconds is gone. Where a collective cannot end
because its rank is gone, the communicator is aborted: that group cannot be used again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from .._lib import _device
from ..errors import DeviceError, GroupError
from . import _board
from ._board import Board, Told

_calls: dict[str, list[list[str]]] = {}
"""The calls of this process by group, each with the keys that it put into the store. Every rank makes the same calls."""
_calls_lock = threading.Lock()


class Team:
    """The ranks of one call. Every rank of the group must make the call."""

    def __init__(self, group: Any, device: int, what: str) -> None:
        """group    torch.distributed's; `what` is the ranks' work, for messages."""
        if not dist.is_available() or not dist.is_initialized():
            raise GroupError("torch.distributed has no process group: call torch.distributed.init_process_group first")
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise GroupError("this process is no rank of the group: only its ranks load with it")
        self.device = torch.device(_device.name(device))
        self._what = what
        self._kind = _backend(group, self.device)
        name = group.group_name
        with _calls_lock:
            calls = _calls.setdefault(name, [])
            calls.append([])
            number = len(calls) - 1
        # A rank that is in this call has left the one before it, for which all ranks had to leave the one before that.
        old = calls[number - 2] if number > 1 else []
        self._board = Board(f"hbmfs/{name}/{number}/", self.rank, self.size, _patience(group, self.device), calls[number], old)

    @property
    def nccl(self) -> bool:
        """Whether collectives are NCCL's, which work in place and in the order of a stream."""
        return self._kind == "nccl"

    def gather(self, said: str) -> list[str]:
        """The data of each rank, by rank. Each rank calls it once."""
        self._board.say("said", said)
        return self._board.values([f"{rank}/said" for rank in range(self.size)], self._what)

    def have(self, key: str) -> None:
        """Tells the others that this rank is ready for a step that some ranks make together."""
        self._board.say(key, "1")

    def meet(self, key: str) -> None:
        """Waits until every rank has come here."""
        self.have(key)
        self.agree(key, range(self.size), lambda: False)

    def agree(self, key: str, ranks: Sequence[int], stopped: Callable[[], bool]) -> bool:
        """Waits until so many ranks are ready for a step. Either all of them make it, or none does, since one of them stopped."""
        return self._board.agree(key, [f"{rank}/{key}" for rank in ranks], stopped, self._what)

    def check(self) -> None:
        """Raises the failure of another rank, if there is one."""
        self._board.check()

    def lost(self) -> bool:
        """Whether a rank is gone, so that a step it agreed to may never end."""
        return self._board.lost is not None

    def abort(self) -> None:
        """Ends collectives that wait for a rank which is gone."""
        backend = self.group._get_backend(self.device)
        with contextlib.suppress(Exception):  # for any exception: a failure is under way already
            backend.abort()

    def __enter__(self) -> Team:
        self._board.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not isinstance(error, Told):
            self._board.fail(error)
        self._board.close()


class Move(NamedTuple):
    """Bytes that go to another rank, or come from it."""

    rank: int
    memory: Any
    goes: bool


class Unit(NamedTuple):
    """Bytes that several ranks want: `memory` (uint8) is this rank's place for them, and rank ranks[i] reads
    memory[borders[i]:borders[i+1]]."""

    memory: Any
    ranks: tuple[int, ...]
    borders: tuple[int, ...]

    def shares(self) -> list[Any]:
        return [self.memory[begin:end] for begin, end in zip(self.borders, self.borders[1:], strict=False)]

    def moves(self, rank: int) -> Iterator[Move]:
        """This rank's share goes to all others, and theirs come."""
        shares = dict(zip(self.ranks, self.shares(), strict=True))
        for other, share in shares.items():
            if other != rank:
                yield Move(other, shares[rank], True)
                yield Move(other, share, False)


class Mixed(Protocol):
    """Bytes of which ranks want different ones: the moves of this rank."""

    def moves(self, rank: int) -> Iterator[Move]: ...


class Wave(NamedTuple):
    """Units that are exchanged together. Its ranks call it by the same key; each has those of its units that it wants."""

    key: str
    ranks: tuple[int, ...]
    units: Sequence[Unit | Mixed]
    whole: Callable[[], object] | None = None
    """Is called by the caller's thread when the units are whole."""


class Exchange:
    """Makes units whole on every rank that wants them, while the next are read. Two ranks that share waves have them in the
    same order."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._changed = threading.Condition()  # guards the fields below
        self._waves: deque[Wave] = deque()  # that this rank has read its share of
        self._whole: deque[Wave] = deque()
        self._over = False  # no more waves come
        self._stopped = False
        self._failure: BaseException | None = None
        self._flying: list[_Flight] = []
        self._thread = threading.Thread(target=self._run, name="hbmfs-exchange", daemon=True)

    def have(self, wave: Wave) -> None:
        """This rank has read its shares of a wave."""
        self._team.have(wave.key)
        with self._changed:
            self._waves.append(wave)
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until all waves are whole."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.1)
        if self._failure is not None:
            raise self._failure
        self._call()  # later work of other ranks does not concern this one

    def check(self) -> None:
        """Raises the first error so far, and calls functions that wait for whole waves."""
        if self._failure is not None:
            raise self._failure
        self._team.check()
        self._call()

    def _call(self) -> None:
        while self._whole:
            wave = self._whole.popleft()
            if wave.whole is not None:
                wave.whole()

    def __enter__(self) -> Exchange:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends it. After that nothing writes to the memory of a unit."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(0.1)

    def _run(self) -> None:
        try:
            if self._team.device.type == "cuda":
                torch.cuda.set_device(self._team.device)
            self._meet()
            while (wave := self._next()) is not None:
                if self._team.agree(wave.key, wave.ranks, lambda: self._stopped):
                    self._fly(wave)
                del wave
                self._land()
            self._settle()
        except BaseException as err:  # noqa: BLE001 (raised by the thread that waits)
            # An object that keeps a traceback keeps the memory of units.
            self._failure = err.with_traceback(None)
            self._refuse()
        self._flying = []

    def _meet(self) -> None:
        """Has all ranks make a collective. NCCL connects them at their first one, for which it needs all of them."""
        everyone = tuple(range(self._team.size))
        self._team.have("meet")
        if self._team.nccl and self._team.agree("meet", everyone, lambda: self._stopped):
            work = dist.all_reduce(torch.zeros(1, device=self._team.device), group=self._team.group, async_op=True)
            self._flying.append(_Flight(Wave("meet", everyone, []), [work], [], asks=True))

    def _next(self) -> Wave | None:
        """The next wave that this rank is ready for; None at the end."""
        with self._changed:
            while not self._waves and not self._over and not self._stopped:
                self._changed.wait(0.002 if self._flying else 0.5)
                self._land()
                self._team.check()
            return self._waves.popleft() if self._waves else None

    def _settle(self) -> None:
        """Waits for running work. It ends, unless a rank is gone."""
        pause = 0.0001
        while self._flying:
            self._land()
            if self._flying:
                if self._team.lost():
                    self._team.check()
                time.sleep(pause)
                pause = min(2 * pause, 0.002)

    def _refuse(self) -> None:
        """Ends this rank's agreements, and makes no more, so that the group can be used again."""
        with contextlib.suppress(BaseException):
            while not self._team.lost():
                with self._changed:
                    if not self._waves and self._stopped:
                        break
                    wave = self._waves.popleft() if self._waves else None
                    if wave is None:
                        self._changed.wait(_board.BEAT / 10)
                        continue
                if self._team.agree(wave.key, wave.ranks, lambda: True):
                    self._fly(wave)
                del wave
            self._settle()
        if self._flying:
            self._team.abort()
            for flight in self._flying:
                flight.drop()
        self._waves.clear()
        self._whole.clear()

    def _land(self) -> None:
        """Lets go of arrived units."""
        try:
            while self._flying and self._flying[0].over():
                self._whole.append(self._flying.pop(0).wave)
        except Exception as err:  # noqa: BLE001 (each backend has its own)
            # A connection breaks before its rank is missed. The rank that is gone says more.
            end = time.monotonic() + _board.SILENCE + 2 * _board.BEAT
            while time.monotonic() < end and not self._team.lost():
                time.sleep(_board.BEAT / 10)
            self._team.check()
            raise GroupError(f"the ranks of the group cannot exchange bytes: {str(err).splitlines()[0] if str(err) else type(err).__name__}") from None

    def _fly(self, wave: Wave) -> None:
        """Starts to give this rank's shares of a wave to its other ranks, and to get theirs."""
        works, memory = [], []
        for unit in wave.units:
            if isinstance(unit, Unit) and self._gathers(unit):
                share = unit.shares()[unit.ranks.index(self._team.rank)]
                works.append(dist.all_gather_into_tensor(unit.memory, share, group=self._team.group, async_op=True))
                continue
            moves = [move for move in unit.moves(self._team.rank) if len(move.memory)]
            ops = [dist.P2POp(dist.isend if move.goes else dist.irecv, move.memory, group=self._team.group, group_peer=move.rank) for move in moves]
            works += dist.batch_isend_irecv(ops) if ops else []
            memory += moves
        self._flying.append(_Flight(wave, works, memory, self._team.nccl))

    def _gathers(self, unit: Unit) -> bool:
        """Whether NCCL can gather it in place."""
        return self._team.nccl and len(unit.ranks) == self._team.size and len({len(share) for share in unit.shares()}) == 1


class _Flight:
    """A wave that is under way. Only NCCL says without waiting whether work is over."""

    def __init__(self, wave: Wave, works: list[Any], memory: list[Any], asks: bool) -> None:
        self.wave, self._works = wave, works
        self._memory = memory  # lives as long as they use it
        self._error: Exception | None = None
        self._waiter = None if asks else threading.Thread(target=self._wait, name="hbmfs-gloo", daemon=True)
        if self._waiter is not None:
            self._waiter.start()

    def _wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
        except Exception as err:  # noqa: BLE001 (raised by over)
            self._error = err.with_traceback(None)

    def over(self) -> bool:
        """Whether it has ended. It raises the error of the failure."""
        if self._waiter is None:
            if not all(work.is_completed() for work in self._works):
                return False
            self._wait()
        elif self._waiter.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def drop(self) -> None:
        """Lets go of the memory, after an abort."""
        if self._waiter is None:
            self._wait()
        self._works, self._memory = [], []


def _backend(group: Any, device: torch.device) -> str:
    """The name of the backend that moves a group's tensors on a device."""
    try:
        group._get_backend(device)
    except RuntimeError as err:
        raise DeviceError(f"the group has no backend for {device}: make it with nccl for GPUs, with gloo for the CPU") from err
    kind = str(dist.get_backend(group)) if ":" not in str(dist.get_backend_config(group)) else _configured(group, device)
    if device.type == "cuda" and kind == "gloo":
        raise DeviceError(f"the group's gloo cannot share the memory of {device}: make the group with nccl")
    return kind


def _configured(group: Any, device: torch.device) -> str:
    """As in "cpu:gloo,cuda:nccl"."""
    config = dict(entry.split(":", 1) for entry in str(dist.get_backend_config(group)).split(","))
    return config.get(device.type, "")


def _patience(group: Any, device: torch.device) -> float:
    """The group's timeout, in seconds: so long a rank may take to make the call."""
    try:
        timeout = group._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        timeout = dist.distributed_c10d.default_pg_timeout
    return float(timeout.total_seconds())
