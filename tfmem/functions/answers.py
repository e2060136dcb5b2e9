"""What a CPU's kernels answered (`runtime.asking`), kept on disk: to ask them may take a process.

A GPU's are asked by every process: the first run of a convolution there chooses its algorithm.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from tfmem.bridge import kernels
from tfmem.bridge.asked import Answer, Ask, Question
from tfmem.costs import history, profiler
from tfmem.graph import device_names
from tfmem.runtime import devices

_log = logging.getLogger("tfmem")

_TRIED = 1 / 16
"""Part of the budget that kernels find free for their workspaces when they try algorithms: what the
fastest of them holds, a plan has less."""

_SETTINGS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "TF_ENABLE_ONEDNN_OPTS")
"""Variables that decide which of its kernels oneDNN takes."""


def answering(ask: Ask, budget: int | None) -> Ask:
    """Finds out what kernels hold: from what is kept, else by asking them.

    Args:
      ask: asks them.
      budget: bytes that the function may take; without one a GPU's kernels, which keep to what they
        choose, are not asked.
    """
    most = int(_TRIED * (budget or 0))

    def answer(question: Question) -> Answer | None:
        if device_names.is_gpu(question.device):
            return ask(replace(question, most=most)) if most else None
        return _of_cpu(question, ask)

    return answer


def _of_cpu(question: Question, ask: Ask) -> Answer | None:
    machine, facts = profiler.machine(), _facts(question)
    if known := history.told(machine, *facts):
        try:
            return Answer.of(known["shapes"], known["scratch"])
        except (KeyError, TypeError):
            _log.warning("what a kernel once answered is damaged; it is asked again")
    answer = ask(question)
    if answer is not None:
        history.keep_told({"shapes": answer.shapes, "scratch": answer.scratch}, machine, *facts)
    return answer


def _facts(question: Question) -> tuple[str, ...]:
    """What an answer depends on."""
    shapes = [(dtype.name, shape) for dtype, shape in question.inputs]
    return (
        "a kernel's answer",
        question.op,
        question.attrs.hex(),
        repr((shapes, question.values)),
        f"{devices.threads_of_a_kernel()} threads",
        " ".join(kernels.instructions()),
        *(os.environ.get(name, "") for name in _SETTINGS),
    )
