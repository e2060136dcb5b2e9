"""What TensorFlow says of a step without memory is understood, and told."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.children.host import MIB
from tests.support.captures import LOCAL
from tfmem.errors import BudgetError, Error, HostMemoryError
from tfmem.functions.failures import failure_of, is_failure, tells_bugs
from tfmem.runtime.limited import run_limited

SAID = (
    "OOM when allocating tensor with shape[1024,3] and type half on "
    f"{LOCAL} by allocator bfc_cpu_allocator_for_gpu"
)
WITHIN = f"""Graph execution error:

Detected at node while/body/_1/mul defined at (most recent call last):
<stack traces unavailable>
{SAID}
\t [[{{{{node while/body/_1/mul}}}}]]
Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_...
\t [[while]] [Op:__inference_step_25]"""


def test_node_bytes_and_device_are_read_from_the_message() -> None:
    found = failure_of(tf.errors.ResourceExhaustedError(None, None, WITHIN))
    assert found.said == SAID
    assert found.nodes == ("while/body/_1/mul", "while")
    assert found.nodes_of({"while", "mul"}) == ["while", "while"]
    assert found.nodes_of({"mul"}) == []
    assert found.nbytes == 1024 * 3 * 2
    assert found.device == LOCAL
    assert found.peak_bytes is None  # the allocator of this process keeps no statistics


@pytest.mark.parametrize("text", ["", "no memory", SAID.replace("half", "quarter"), "a\nb"])
def test_other_messages_are_taken_as_they_are(text: str) -> None:
    found = failure_of(tf.errors.ResourceExhaustedError(None, None, text))
    assert found.said == text.partition("\n")[0]
    assert found.nbytes == 0


def test_only_want_of_memory_is_a_failure_of_a_plan() -> None:
    without = tf.errors.ResourceExhaustedError(None, None, SAID)
    assert is_failure(without)
    assert is_failure(tf.errors.InternalError(None, None, "Cannot parse tensor from proto: dtype"))
    assert not is_failure(MemoryError())  # of the host
    assert not is_failure(tf.errors.InvalidArgumentError(None, None, SAID))
    assert not is_failure(Error("of tfmem's own"))
    full = HostMemoryError("of the host")
    full.__cause__ = without
    assert not is_failure(full)


@pytest.mark.memory
def test_real_messages_are_understood() -> None:
    outcome = run_limited("tests.children.watch:messages", limit_bytes=64 * MIB, timeout=200)
    assert outcome.status == "ok", outcome.error + outcome.output
    for name, found in outcome.result.items():
        assert found["device"] == LOCAL, name
        assert found["nbytes"] == 60 * MIB, name
        assert found["nodes"] == [name], name
        assert 30 * MIB <= found["peak"] <= 64 * MIB, name


@pytest.mark.memory
def test_what_a_function_makes_and_has_no_room_for_is_a_budget_that_cannot_be_met() -> None:
    outcome = run_limited(
        "tests.children.memory:no_room_for_variables", limit_bytes=16 * MIB, timeout=120
    )
    assert outcome.status == "ok", outcome.error + outcome.output
    kind, text, plans = outcome.result
    assert kind == "BudgetError"
    assert "step is out of memory while it is traced" in text
    assert "shape[1024,1024]" in text
    assert plans == 0


def test_a_host_that_is_lost_while_something_is_planned_is_no_bare_error() -> None:
    said = "Socket closed from remote target /job:other/replica:0/task:0/device:CPU:0"

    @tells_bugs
    def probe() -> None:
        raise tf.errors.UnavailableError(None, None, said)

    with pytest.raises(HostMemoryError, match=r"job:other.* is lost"):
        probe()


def test_a_constant_that_has_no_room_while_something_is_planned_is_no_bug() -> None:
    said = "Unable to evaluate a constant node; Input node name: eye/diag\nand more"

    @tells_bugs
    def imported() -> None:
        raise ValueError(said)

    with pytest.raises(BudgetError, match=r"to plan in: Unable.*eye/diag\. The"):
        imported()
