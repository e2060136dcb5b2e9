"""Options shared by all tests."""

import pytest

LONGEST = ("test_keras.py", "test_recompute.py", "test_bodies.py", "test_host.py", "test_models.py")
"""These files begin first, so that no worker is left with one of them at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what passes make into tests/golden"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept where no other test finds them."""
    monkeypatch.setenv("TFMEM_CACHE_DIR", str(tmp_path / "cache"))
