"""What `tests.gpu_checks` asks: of a GPU where there is one, and of the CPU."""

import pytest
import tensorflow as tf

from tests.gpu_checks import CHECKS
from tfmem.limited import run_limited

has_gpu = bool(tf.config.list_physical_devices("GPU"))


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu, reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name: str) -> None:
    run(name, gpu=True)


@pytest.mark.memory
@pytest.mark.parametrize("name", ["copies_free_memory", "kernels_are_measured"])
def test_on_the_cpu(name: str) -> None:
    """The others take parts that other tests try on the CPU; `bench gpu --nogpu` asks them all."""
    run(name, gpu=False)


def run(name: str, gpu: bool) -> None:
    target = f"tests.gpu_checks:{name}"
    done = run_limited(target, limit_bytes=CHECKS[name], timeout=300, reserve=True, gpu=gpu)
    assert done.status == "ok", f"{done.error}\n{done.output}"
