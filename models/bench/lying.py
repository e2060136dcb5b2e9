"""Sizes made smaller on purpose: what tfmem is told of a function is wrong, the function is not."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from tfmem.bridge.capture import Captured
from tfmem.functions import decide, lessons, tracing
from tfmem.graph.bodies import Bodies
from tfmem.graph.ir import Graph


@contextlib.contextmanager
def lied(share: float) -> Iterator[None]:
    """Every size that is captured is so many times what it is: tensors, variables, workspaces.

    What others hold on the device is still told from what is the function's by its real sizes.
    """
    real: dict[int, Captured] = {}
    capture, beside = tracing.capture, decide.bytes_beside

    def captured(*args: Any, **kwargs: Any) -> Captured:
        found = capture(*args, **kwargs)
        told = dataclasses.replace(
            found,
            graph=_scaled(found.graph, share),
            bodies=_bodies(found.bodies, share),
            workspace=_sizes(found.workspace, share),
        )
        real[id(told.graph)] = found
        return told

    def bytes_beside(told: Captured, *others: Any) -> int:
        return beside(real.get(id(told.graph), told), *others)

    with (
        mock.patch.object(tracing, "capture", captured),
        mock.patch.object(decide, "bytes_beside", bytes_beside),
        mock.patch.object(lessons, "bytes_beside", bytes_beside),
    ):
        yield


def _scaled(graph: Graph, share: float) -> Graph:
    nodes = (
        dataclasses.replace(node, nbytes=tuple(int(share * n) for n in node.nbytes))
        for node in graph.nodes
    )
    return dataclasses.replace(graph, nodes=tuple(nodes))


def _bodies(bodies: Bodies, share: float) -> Bodies:
    return {
        name: tuple(
            dataclasses.replace(
                body,
                graph=_scaled(body.graph, share),
                workspace=_sizes(body.workspace, share),
                bodies=_bodies(body.bodies, share),
            )
            for body in functions
        )
        for name, functions in bodies.items()
    }


def _sizes(sizes: Mapping[str, int], share: float) -> dict[str, int]:
    return {name: int(share * nbytes) for name, nbytes in sizes.items()}
