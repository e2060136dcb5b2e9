"""The README's example runs as it stands, and its imports are the public names."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_example_runs(capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "step.report" in block]
    scope: dict[str, object] = {}
    exec(compile(example, str(README), "exec"), scope)
    assert float(scope["loss"]) > 0  # type: ignore[arg-type]
    assert "nothing changed" in capsys.readouterr().out
