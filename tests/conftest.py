"""Options shared by all tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what passes make into tests/golden"
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept where no other test finds them."""
    monkeypatch.setenv("TFMEM_CACHE_DIR", str(tmp_path / "cache"))
