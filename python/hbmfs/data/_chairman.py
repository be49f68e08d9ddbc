"""Which source gives the n-th sample of a mixture: at every prefix each source has given its share, to less than one sample.

It is the algorithm of Tijdeman, "The chairman assignment problem" (Discrete Mathematics 32, 1980). T_i(n) is the target of source
i after n samples. Its next sample, with j given, may come once T_i(n) reaches j + e, and is due when T_i(n)
reaches j + 1 - e, where e = 1/(2k-2) for k sources. Of those that may come, the one that is due first is next. Then no
source is ever further than 1 - e from T_i(n), which no other rule improves. (Choosing the largest deficit drifts past one.)

T is made of lines, since weights change at given samples, and sources end. All arithmetic is of whole numbers: a weight is
the decimal number that it prints as. Where it changes, T is rounded to 2**-40 of a sample.

Tijdeman's rule looks at T and at the samples so far, so a place in the order is a number for each source: going on there
replays nothing. Where a common denominator of the weights is small the order repeats itself after so many samples.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._lib._native import SOURCE, library

NEVER = 1 << 62
_FINE = 1 << 40  # parts of a sample to which T is rounded where its slopes change
_PERIOD = 1 << 14  # samples after which an order may repeat itself and be kept, at most


@dataclass(frozen=True)
class Line:
    """T from sample `begin` to `end`: T_i(n) = (at[i] + slope[i] * (n - begin)) / one."""

    begin: int
    end: int
    one: int
    early: int  # e, in the same units
    at: tuple[int, ...]
    slope: tuple[int, ...]
    period: int  # samples after which all T_i have grown by whole numbers

    @classmethod
    def of(cls, begin: int, end: int, at: Sequence[Fraction], share: Sequence[Fraction]) -> Line:
        """A line from T(begin) = at on, with these shares of each sample. Rounds `at` so that no T_i falls behind itself."""
        period = math.lcm(*(s.denominator for s in share))
        parts = max(2, 2 * len(at) - 2)
        one = period * parts * _FINE
        units = [math.ceil(a * one) for a in at]
        heaviest = max(range(len(at)), key=lambda i: share[i])
        units[heaviest] += begin * one - sum(units)
        return cls(begin, end, one, one // parts, tuple(units), tuple(int(s * one) for s in share), period)

    def after(self, n: int) -> list[Fraction]:
        """T(n)."""
        return [Fraction(a + s * (n - self.begin), self.one) for a, s in zip(self.at, self.slope, strict=True)]


def lines(weights: Sequence[tuple[int, Sequence[Fraction]]], limits: Sequence[int | None], stops: Sequence[bool]) -> list[Line]:
    """T of sources with `weights` from given samples on. A source with a limit ends there: it stops the mixture, or the others
    share its part. The last line ends where the mixture does, or never."""
    out: list[Line] = []
    at, n, phase = [Fraction(0)] * len(limits), 0, 0
    while n < NEVER:
        while phase + 1 < len(weights) and weights[phase + 1][0] <= n:
            phase += 1
        border = min(weights[phase + 1][0], NEVER) if phase + 1 < len(weights) else NEVER
        share = _shares(weights[phase][1], at, limits)
        if share is None or _stopped(at, limits, stops):
            break
        full = min(((Fraction(limits[i] or 0) - at[i]) / s for i, s in enumerate(share) if s and limits[i] is not None), default=None)
        whole = border if full is None else min(border, n + math.floor(full))
        if whole > n:
            out.append(Line.of(n, whole, at, share))
            at, n = out[-1].after(whole), whole
            continue
        then = _one_more(weights[phase][1], at, limits, stops)  # a source ends between two samples
        if then is None:
            break
        out.append(Line.of(n, n + 1, at, [b - a for a, b in zip(at, then, strict=True)]))
        at, n = out[-1].after(n + 1), n + 1
    return out


def _stopped(at: Sequence[Fraction], limits: Sequence[int | None], stops: Sequence[bool]) -> bool:
    return any(stop and limit is not None and a >= limit for a, limit, stop in zip(at, limits, stops, strict=True))


def _shares(weights: Sequence[Fraction], at: Sequence[Fraction], limits: Sequence[int | None]) -> list[Fraction] | None:
    """The shares of the sources that have samples left; None where nobody has."""
    left = [w if limit is None or a < limit else Fraction(0) for w, a, limit in zip(weights, at, limits, strict=True)]
    total = sum(left)
    return [w / total for w in left] if total else None


def _one_more(weights: Sequence[Fraction], at: Sequence[Fraction], limits: Sequence[int | None], stops: Sequence[bool]) -> list[Fraction] | None:
    """T after one more sample, within which sources end; None where the mixture ends before."""
    now, left = list(at), Fraction(1)
    while left:
        share = _shares(weights, now, limits)
        if share is None or _stopped(now, limits, stops):
            return None
        step = min([left, *((Fraction(limit) - now[i]) / share[i] for i, limit in enumerate(limits) if limit is not None and share[i])])
        now = [a + s * step for a, s in zip(now, share, strict=True)]
        left -= step
    return now


class Assignment:
    """The sources of the samples from `base` on, computed as they are asked for, and kept until they are forgotten."""

    def __init__(self, drawn: Sequence[Line]) -> None:
        self._lines = list(drawn)
        self._k = len(self._lines[0].at)
        self._dtype = np.dtype(np.uint8 if self._k <= 256 else np.int64)
        self.end = self._lines[-1].end
        self.restart(0, [0] * self._k)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_period": len(state["_pattern"])} | state)  # older pickles have one period in their pattern, and no number

    def restart(self, n: int, counts: Sequence[int]) -> None:
        """Goes on at sample n, where the sources have given so many."""
        self._base, self._before = n, np.array(counts, np.int64)
        self._known: NDArray[Any] = np.empty(0, self._dtype)
        self._resume(n, list(counts))

    def fits(self, n: int, counts: Sequence[int]) -> bool:
        """Whether the sources can have given so many at sample n."""
        if len(counts) != self._k or sum(counts) != n or not 0 <= n <= self.end:
            return False
        line = next((line for line in self._lines if n <= line.end), self._lines[-1])
        return all(abs(t - c) < 1 for t, c in zip(line.after(n), counts, strict=True))

    def sources(self, first: int, end: int) -> NDArray[Any]:
        """The sources of the samples [first, end)."""
        self._extend(end)
        return self._known[first - self._base : end - self._base]

    def counts(self, n: int) -> NDArray[np.int64]:
        """How many samples each source has given before sample n."""
        self._extend(n)
        return self._before + np.bincount(self._known[: n - self._base], minlength=self._k)

    def most(self) -> list[int]:
        """How many samples each source gives to the end, or one more. Of an assignment without an end it says nothing."""
        line = self._lines[-1]
        return [math.ceil(t) for t in line.after(line.end)]

    def forget(self, n: int) -> None:
        """Drops the order before sample n."""
        if n > self._base:
            self._before, self._known, self._base = self.counts(n), self._known[n - self._base :], n

    def _extend(self, end: int) -> None:
        missing = end - self._base - len(self._known)
        if missing > 0:
            self._known = np.concatenate([self._known, *self._draw(missing)])

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _resume(self, n: int, counts: list[int]) -> None:
        self._n, self._counts = n, counts
        self._line = next((p for p, line in enumerate(self._lines) if n < line.end), len(self._lines) - 1)
        self._tries = 2  # to find that the order repeats itself
        self._pattern: NDArray[Any] = np.empty(0, self._dtype)
        self._period = 0
        self._repeats = n  # the order is `pattern` again and again up to here
        self._next = [self._look_up(i) for i in range(self._k)]  # of each source's next sample: (may come, due)

    def _look_up(self, i: int) -> tuple[int, int]:
        return self._reaches(i, False), self._reaches(i, True)

    def _reaches(self, i: int, due: bool) -> int:
        """The number of samples at which the next one of source i may come, or is due."""
        given = self._counts[i]
        for line in self._lines[self._line :]:
            missing = line.one * given + (line.one - line.early if due else line.early) - line.at[i]
            if missing <= 0:
                return line.begin
            if line.slope[i]:
                n = line.begin - (-missing // line.slope[i])
                if n <= line.end:
                    return n
        return NEVER

    def _draw(self, count: int) -> list[NDArray[Any]]:
        """Draws the next so many samples."""
        out: list[NDArray[Any]] = []
        while count > 0:
            while self._n >= self._lines[self._line].end:
                self._line, self._tries = self._line + 1, 2
            line = self._lines[self._line]
            if self._n < self._repeats:
                out.append(self._repeat(min(count, self._repeats - self._n)))
            elif self._tries and line.period <= _PERIOD and self._n + 4 * line.period < line.end:
                out.append(self._look_for_period(line))
            else:
                out.append(self._some(min(count, line.end - self._n)))
            count -= len(out[-1])
        return out

    def _look_for_period(self, line: Line) -> NDArray[Any]:
        """Draws a period. If T and the samples so far differ as before it, the order repeats itself: up to where a sample may be
        due on the next line."""
        before = self._lag(line)
        drawn = self._some(line.period)
        self._tries -= 1
        if self._lag(line) == before:
            self._pattern, self._tries = np.tile(drawn, 1 + _PERIOD // line.period), 0
            self._period = line.period
            self._repeats = self._n + (line.end - self._n - 2 * line.period) // line.period * line.period
        return drawn

    def _lag(self, line: Line) -> list[int]:
        return [a + s * (self._n - line.begin) - line.one * c for a, s, c in zip(line.at, line.slope, self._counts, strict=True)]

    def _repeat(self, count: int) -> NDArray[Any]:
        """Some of the next samples of an order that repeats itself. `repeats` is whole periods away from the beginning of one."""
        at = -(self._repeats - self._n) % self._period
        drawn = self._pattern[at : at + count]
        given: list[int] = np.bincount(drawn, minlength=self._k).tolist()
        self._n += len(drawn)
        self._counts = [a + b for a, b in zip(self._counts, given, strict=True)]
        if self._n == self._repeats:
            self._resume(self._n, self._counts)
            self._tries = 0
        return drawn

    def _some(self, count: int) -> NDArray[Any]:
        """Draws samples of one line: by the library, except in a forked child, or of numbers beyond 128 bits."""
        line = self._lines[self._line]
        if self._k <= 256 and line.one < 1 << 127 and not library().forked:
            return self._some_by_library(count, line)
        return self._some_here(count, line)

    def _some_by_library(self, count: int, line: Line) -> NDArray[Any]:
        drawn, done = np.empty(count, np.uint8), 0
        while done < count:
            sources, some = np.array([self._source(i, line) for i in range(self._k)], SOURCE), ctypes.c_int64()
            library().ask("draw", sources.ctypes.data, self._k, self._n, line.end, drawn[done:].ctypes.data, count - done, some)
            new = drawn[done : done + some.value]
            self._n, done = self._n + len(new), done + len(new)
            self._counts = [a + b for a, b in zip(self._counts, np.bincount(new, minlength=self._k).tolist(), strict=True)]
            self._next = list(zip(sources["may"].tolist(), sources["due"].tolist(), strict=True))
            last = int(new[-1])
            if not sources[last]["slope"].any() or sources[last]["then_due"] > line.end:  # where the library stops
                self._next[last] = self._look_up(last)
        return drawn

    def _source(self, i: int, line: Line) -> tuple[Any, ...]:
        """A source as hbmfs_draw takes it."""
        rise, given = line.slope[i], line.one * (self._counts[i] + 1) - line.at[i]
        every, part = divmod(line.one, rise) if rise else (NEVER, 0)
        if every >= NEVER >> 1:
            return (*self._next[i], 0, 0, 0, *[(0, 0)] * 4)
        may, due = (line.begin - (-x // rise) for x in (given + line.early, given + line.one - line.early))
        past = (-(given + line.early) % rise, -(given + line.one - line.early) % rise)
        wide = [(x >> 64, x & (1 << 64) - 1) for x in (rise, part, *past)]
        return (*self._next[i], min(may, NEVER), min(due, NEVER), every, *wide)

    def _some_here(self, count: int, line: Line) -> NDArray[Any]:
        counts, at, slope, one, begin, end = self._counts, line.at, line.slope, line.one, line.begin, line.end
        early, late = line.early, line.one - line.early
        ready: list[tuple[int, int]] = []  # (due, source)
        waiting = [(may, due, i) for i, (may, due) in enumerate(self._next)]
        heapify(waiting)
        drawn = []
        for n in range(self._n + 1, self._n + count + 1):
            while waiting and waiting[0][0] <= n:
                _, due, i = heappop(waiting)
                heappush(ready, (due, i))
            i = heappop(ready)[1]
            drawn.append(i)
            counts[i] += 1
            given, rise = one * counts[i] - at[i], slope[i]
            if rise and (due := begin - (-(given + late) // rise)) <= end:
                may = begin - (-(given + early) // rise)
                if may <= n + 1:
                    heappush(ready, (due, i))
                else:
                    heappush(waiting, (may, due, i))
            else:
                heappush(waiting, (*self._look_up(i), i))
        self._n += count
        for due, i in ready:
            self._next[i] = (self._n, due)
        for may, due, i in waiting:
            self._next[i] = (may, due)
        return np.array(drawn, self._dtype)
