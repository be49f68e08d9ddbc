"""Messages between the ranks of a group through the group's store: data of each, agreements, signs of life, the first failure.

One thread asks the store, which may hang; everybody else waits for that thread."""

from __future__ import annotations

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from .. import errors
from ..errors import GroupError

SILENCE = 10.0
"""Seconds without a word after which a rank that took part is gone."""
BEAT = 1.0
"""Seconds between two words of a rank."""
LOOK = 0.0003
"""Seconds between two looks at the store while somebody waits for it."""

_own_stores: list[tuple[Any, Any]] = []
"""The store of torch.distributed, and a connection to it that only this module uses, one call at a time."""


class Told(BaseException):
    """The failure of another rank, on its way out of the call, which raises `failure` at its end."""

    def __init__(self, failure: errors.Error) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Board:
    """Messages between the ranks through the group's store. One thread asks the store, which may hang."""

    def __init__(self, prefix: str, rank: int, size: int, patience: float, keys: list[str], old: list[str]) -> None:
        self._store = _own_store()
        self._prefix, self._rank, self._size, self._patience = prefix, rank, size, patience
        self._keys, self._old = keys, old
        self._changed = threading.Condition()  # guards the fields below
        self._questions: list[_Question] = []
        self._failure: errors.Error | None = None
        self.lost: GroupError | None = None
        self._failed = False  # this rank has said why
        self._over = False
        self._heard = time.monotonic()  # when the store last answered
        self._thread = threading.Thread(target=self._run, name="hbmfs-group", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def say(self, key: str, value: str) -> None:
        """Puts a value under a key of this rank."""
        mine = f"{self._prefix}{self._rank}/{key}"

        def put(store: Any) -> bool:
            store.set(mine, value)
            self._keys.append(mine)
            return True

        self._ask(put)

    def values(self, keys: Sequence[str], what: str) -> list[str]:
        """Waits until keys are there, and gives their values."""
        names = [self._prefix + key for key in keys]
        question = self._ask(lambda store: [value.decode() for value in store.multi_get(names)] if store.check(names) else None)
        self._wait(question, what)
        return list(question.answer)

    def agree(self, key: str, keys: Sequence[str], stopped: Callable[[], bool], what: str) -> bool:
        """Waits until keys are there, or this rank has stopped, and puts "go" or "stop" under a key, if nothing is there. It says
        which of them is there then."""
        names, decision = [self._prefix + name for name in keys], self._prefix + key
        told: Told | None = None

        def decide(store: Any) -> Any:
            over = told is not None or stopped()
            if not over and not store.check(names):
                return None
            self._keys.append(decision)
            return store.compare_set(decision, "", "stop" if over else "go")

        question = self._ask(decide)
        try:
            self._wait(question, what)
        except Told as err:
            told = err
            with self._changed:
                while question.answer is None and self.lost is None and not self._silent():
                    self._changed.wait(SILENCE / 10)
        if question.answer == b"go":
            return True
        if told is not None and not stopped():
            raise told
        if not stopped():
            self._wait(self._ask(lambda store: None), what)  # the rank that stopped says why
        return False

    def check(self) -> None:
        with self._changed:
            self._raise()

    def fail(self, error: BaseException) -> None:
        """Tells the others why this rank failed, if it is the first one."""
        kind = type(error).__name__
        self._tell({"kind": kind, "why": str(error) or kind, "rank": self._rank, "lost": False})

    def _tell(self, failure: dict[str, Any]) -> None:
        self._failed = True
        self._ask(lambda store: store.compare_set(self._prefix + "failed", "", json.dumps(failure)))

    def close(self) -> None:
        """Ends the thread when it has said everything. A store that hangs is left alone."""
        if self._failed or self._failure is not None:
            time.sleep(BEAT / 2)  # the others look for the reason, and this process may take the store with it
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(SILENCE / 5)
        if self._thread.is_alive() or self.lost is not None:
            _own_stores.clear()

    def _ask(self, ask: Callable[[Any], Any]) -> _Question:
        question = _Question(ask)
        with self._changed:
            self._questions.append(question)
            self._changed.notify_all()
        return question

    def _wait(self, question: _Question, what: str) -> None:
        end = time.monotonic() + self._patience
        with self._changed:
            while question.answer is None:
                self._raise()
                if time.monotonic() > end:
                    raise GroupError(f"{what}: not all ranks of the group came within {self._patience:.0f} s, its timeout: every rank must make the call")
                self._changed.wait(SILENCE / 10)

    def _raise(self) -> None:
        if self._failure is None and self._silent():
            self._failure = GroupError(f"the group's store has not answered for {SILENCE:.0f} s: the process that holds it, rank 0 as a rule, is gone or stuck")
            self.lost = self._failure
        if self._failure is not None:
            raise Told(self._failure)

    def _silent(self) -> bool:
        return time.monotonic() - self._heard > SILENCE

    def _run(self) -> None:
        try:
            while self._old:
                self._store.delete_key(self._old.pop())
            beats = _Beats(self._store, self._prefix, self._rank, self._size)
            self._keys.append(beats.key)
            while self._turn(beats):
                pass
            beats.end()
        except Exception as err:  # noqa: BLE001 (torch has no narrower type for a broken store)
            reason = str(err).splitlines()[0] if str(err) else type(err).__name__
            with self._changed:
                self.lost = GroupError(f"the group's store is gone, which rank 0 holds as a rule: {reason}")
                self._failure = self._failure or self.lost
                self._changed.notify_all()  # a thread that waits for an answer raises it

    def _turn(self, beats: _Beats) -> bool:
        """Asks the store every question once; false at the end."""
        with self._changed:
            questions, over = self._questions[:], self._over
        answers = [question.ask(self._store) for question in questions]
        if over:
            return False
        lost = beats.look()
        if lost is not None and not self._failed:
            self._tell({"kind": "GroupError", "why": str(lost), "rank": None, "lost": True})
        failure = None
        if self._store.check([self._prefix + "failed"]):
            said = json.loads(self._store.get(self._prefix + "failed"))
            failure = _failure(said)
            lost = lost or (GroupError(said["why"]) if said["lost"] else None)
        with self._changed:
            self._heard = time.monotonic()
            self.lost = self.lost or lost
            self._failure = self._failure or failure or lost
            for question, answer in zip(questions, answers, strict=True):
                question.answer = answer
            self._questions = [question for question in self._questions if question.answer is None]
            self._changed.notify_all()
            if not self._over and not any(question not in questions for question in self._questions):
                self._changed.wait(LOOK if self._questions else BEAT / 20)
        return True


def _own_store() -> Any:
    """The connection of this process. It is kept: torch 2.9 sometimes takes 5 s to make one. A torch that cannot make another
    one gives its own, whose timeout stays as it is."""
    store = dist.distributed_c10d._get_default_store()
    if not _own_stores or _own_stores[0][0] is not store:
        own = store
        if hasattr(store, "clone"):
            own = store.clone()
            own.set_timeout(datetime.timedelta(seconds=SILENCE))
        _own_stores[:] = [(store, own)]
    return _own_stores[0][1]


class _Question:
    """The question to the store until it has an answer."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask
        self.answer: Any = None


class _Beats:
    """Words of life: each rank counts up in the store, and looks whether the others do."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._rank = store, rank
        self._keys = [f"{prefix}{other}/beat" for other in range(size)]
        self.key = self._keys[rank]
        self._who = f"{os.getpid()} {socket.gethostname()}"
        self._count = 0
        self._next = 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}

    def look(self) -> GroupError | None:
        """Says that this rank lives, and which other one is gone."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + BEAT
        self._count += 1
        self._store.set(self.key, f"{self._count} {self._who}")
        for rank, key in enumerate(self._keys):
            if rank == self._rank or not (rank in self._seen or self._store.check([key])):
                continue
            beat = self._store.get(key)
            last, when = self._seen.get(rank, (b"", now))
            if beat != last:
                self._seen[rank] = beat, now
            elif now - when > SILENCE and not beat.startswith(b"end"):
                _, pid, host = beat.decode().split(" ", 2)
                return GroupError(f"rank {rank} of the group (process {pid} on {host}) is gone: last seen {now - when:.0f} s ago")
        return None

    def end(self) -> None:
        """Says that this rank has left the call, and will be silent."""
        self._store.set(self.key, f"end {self._who}")


def _failure(said: dict[str, Any]) -> errors.Error:
    kind: Any = getattr(errors, said["kind"], None)
    known = isinstance(kind, type) and issubclass(kind, errors.Error)
    who = "" if said["rank"] is None else f"rank {said['rank']} of the group failed: "
    text = who + ("" if known else f"{said['kind']}: ") + said["why"]
    return kind(text) if known else GroupError(text)
