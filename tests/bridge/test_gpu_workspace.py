"""What kernels of CUDA hold, beside what they asked for on an H200, each alone.

Recorded on 2026-11-28 in graphs of one op; `python -m tests.simgpu.op_requests` records anew.
"""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest

from tests.simgpu.op_requests import call_of
from tfmem.bridge import kernels
from tfmem.bridge.gpu_workspace import GPU_RULES
from tfmem.bridge.shapes import Call
from tfmem.bridge.workspace import workspace
from tfmem.costs.types import GRAIN

ROWS = Path(__file__).with_name("h200_requests.jsonl").read_text(encoding="utf-8").splitlines()
"""A call each, with the bytes of its kernel's requests, and which of them it returned; `most` is
what it held at once, where nothing else was asked for."""

SMALL = 4096
"""Bytes of sums, counts, pointers and the like that are not foreseen."""

OF_LIBRARIES = {
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
    *("DepthwiseConv2dNativeBackpropFilter", "SelfAdjointEigV2", "Svd", "TridiagonalSolve"),
}
"""Ops for which cuDNN, cuSOLVER or cuSPARSE hold something that shapes do not tell."""

IN_STEPS = {"Round", "Rint", "Unique", "UniqueWithCounts"}
"""Ops whose kernels hold less at once than they ask for."""


def whole_grains(nbytes: int) -> int:
    return -(-nbytes // GRAIN) * GRAIN


@pytest.fixture(autouse=True)
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_cuda", lambda: True)


def test_each_rule_was_seen() -> None:
    seen = {json.loads(line)["op"] for line in ROWS}
    assert GPU_RULES.keys() - seen == {"_FusedConv2D", "Multinomial"}


@pytest.mark.parametrize("line", ROWS, ids=lambda line: f"{json.loads(line)['op']}")
def test_what_is_foreseen_was_asked_for(line: str) -> None:
    row = json.loads(line)
    call, asked = call_of(row), Counter(row["requests"])
    foreseen = Counter(whole_grains(nbytes) for nbytes in workspace(call, on_gpu=True) if nbytes)
    returned = [n for n, stays in zip(row["requests"], row["stays"], strict=True) if stays]
    shapes = row["outputs"][len(returned) :]
    returned += [whole_grains(prod(shape) * row["itemsize"]) for shape in shapes]
    if row["op"] in IN_STEPS:
        assert abs(sum(foreseen.elements()) + sum(returned) - row["most"]) <= SMALL
        return
    assert foreseen <= asked
    rest = asked - foreseen - Counter(returned)
    if row["op"] not in OF_LIBRARIES:
        assert sum(rest.elements()) <= SMALL


def test_of_a_plugins_kernels_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_cuda", lambda: False)
    assert workspace(Call("Softmax", [(8, 8)], [(8, 8)]), on_gpu=True) == ()
