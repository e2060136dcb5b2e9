"""Run passes over a graph, verified before, between and after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tfmem.errors import RewriteError
from tfmem.graph.ir import Graph
from tfmem.graph.verify import verify, verify_rewrite

Pass = Callable[[Graph], Graph]
"""A frozen dataclass whose fields are its part of the plan, called with a graph."""

Observer = Callable[[Pass, Graph, Graph, float], None]
"""Told after each pass: the pass, the graph before, the graph after, and the seconds it took."""


def run_passes(graph: Graph, passes: Iterable[Pass], observe: Observer | None = None) -> Graph:
    """Applies passes in turn, each verified against what went into it.

    Raises:
      RewriteError: a pass broke an invariant; the message names the pass.
    """
    verify(graph)
    for apply in passes:
        start = time.perf_counter()
        try:
            rewritten = apply(graph)
            verify_rewrite(graph, rewritten)
        except RewriteError as error:
            raise RewriteError(f"pass {type(apply).__name__}: {error}") from error
        if observe is not None:
            observe(apply, graph, rewritten, time.perf_counter() - start)
        graph = rewritten
    return graph
