"""Options shared by all tests."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simgpu.build import CannotBuildError
from tests.simgpu.device import Capabilities, environment
from tests.support.forks import Nurseries
from tfmem.bridge import instances
from tfmem.costs import history
from tfmem.runtime import limited

LONGEST = (
    "test_random_functions.py",
    "test_keras.py",
    "test_recompute.py",
    "test_bodies.py",
    "test_host.py",
    "test_models.py",
)
"""These files begin first, in this order, so that no worker is left with one of them at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what passes make into tests/golden"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_collection_finish() -> None:
    instances.freeze()


def _of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder that all processes of a run share, and the number of that which began them."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return folder.parent, os.getppid()
    return folder, os.getpid()


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what was probed on this machine, which takes a second of each process."""
    folder = _of_all_workers(tmp_path_factory)[0] / "probed"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch, probed: Path) -> None:
    """Plans are kept where no other test finds them, beside what the machine is capable of."""
    cache = tmp_path.with_name(f"{tmp_path.name}-cache")
    cache.mkdir()
    (cache / "probes").symlink_to(probed)
    monkeypatch.setenv("TFMEM_CACHE_DIR", str(cache))


@pytest.fixture
def empty_cache(own_cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept, on disk or in this process, and nothing known of the machine."""
    Path(os.environ["TFMEM_CACHE_DIR"], "probes").unlink()
    monkeypatch.setattr(history, "IN_PROCESS", history.Kept())


@pytest.fixture(autouse=True, scope="session")
def limited_runs_are_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Limited runs are forks that have TensorFlow, unless they want another environment."""
    in_a_new_process = limited._start
    nurseries = Nurseries(os.environ, *_of_all_workers(tmp_path_factory))

    def start(job: str, variables: Any, out: Any, err: Any) -> Any:
        return nurseries.start(job, variables, out, err) or in_a_new_process(
            job, variables, out, err
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited, "_start", start)
        yield


@pytest.fixture(scope="session")
def simulated_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose `GPU:0` is the simulated one.

    What that is capable of is in its cache, so that nothing has to be probed.
    """
    try:
        found = environment(tmp_path_factory.mktemp("simgpu"))
    except CannotBuildError as error:
        pytest.skip(f"no simulated GPU: {error}")
    _learn(found)
    return found


@pytest.fixture(scope="session")
def two_simulated_gpus(simulated_gpu: dict[str, str]) -> dict[str, str]:
    """The same with two of them."""
    found = simulated_gpu | {"SIMGPU_DEVICES": "2"}
    _learn(found)
    return found


def _learn(variables: dict[str, str]) -> None:
    kept = limited.run_limited(
        "tests.simgpu.device:keep_probes",
        dataclasses.asdict(Capabilities()),
        limit_bytes=2**28,
        timeout=60,
        gpu=True,
        environment=variables,
    )
    assert kept.status == "ok", kept.error + kept.output
