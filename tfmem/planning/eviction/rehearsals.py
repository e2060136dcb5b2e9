"""Rehearsals of one problem under many limits, none of them made twice."""

from __future__ import annotations

import math

from tfmem.planning.eviction.floor import floor_bytes
from tfmem.planning.eviction.problem import EvictionProblem
from tfmem.planning.eviction.rehearsal import Slower, Unreachable, rehearse
from tfmem.planning.eviction.schedule import Schedule
from tfmem.planning.eviction.scores import Scoring


class Rehearsals:
    """The schedules of one problem.

    A limit tells in a rehearsal only where more would be in use. So what was made under one limit
    is what would be made under any between that and the schedule's peak. A limit below what is in
    use as the step begins, which no schedule's peak is below, is taken to be that.
    """

    def __init__(self, problem: EvictionProblem) -> None:
        self.problem = problem
        self._made: dict[Scoring, list[tuple[float, Schedule]]] = {}
        self._floors: dict[tuple[bool, bool], int] = {}

    def under(self, limit: float, scoring: Scoring, seconds: float = math.inf) -> Schedule:
        """As `rehearse`."""
        if limit < self._floor(scoring):
            raise Unreachable("a node, with what cannot leave meanwhile")
        limit = max(limit, self.problem.first_bytes)
        known = self._made.setdefault(scoring, [])
        for most, made in known:
            if made.peak_bytes <= limit <= most:
                if made.seconds >= seconds:
                    raise Slower
                return made
        made = rehearse(self.problem, limit, scoring, seconds)
        known.append((limit, made))
        return made

    def _floor(self, scoring: Scoring) -> int:
        ways = scoring.may_recompute, scoring.copy_factor < math.inf
        if ways not in self._floors:
            self._floors[ways] = floor_bytes(self.problem, *ways)
        return self._floors[ways]
