"""Train steps of libraries and styles that were not written for tfmem.

A case is a function without arguments that builds a model, as its users do, and returns a `Work`:

    @case("transformers", legacy_keras=True)
    def bert() -> Work:
        model = ...

        @tf.function
        def step(ids, labels): ...

        return Work(step, batches(tokens(8, 64), labels(8)))

Its name is that of its module and its own, here `hugging_face.bert`. A module that is new here
stands in `MODULES`. Modules import TensorFlow alone at their top: a library that is not installed
must fail in its own cases only.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULES = (
    "keras_models",
    "hugging_face",
    "gans",
    "styles",
    "loops",
)
"""Modules of this package that have cases, in the order of the page."""


def _alone(functions: tuple[Any, ...], *batch: Any) -> Any:
    (function,) = functions
    return function(*batch)


@dataclass(frozen=True)
class Work:
    """What a case trains.

    Attributes:
      functions: the tf.function (or plain callable) that a user would optimise, or a tuple of them.
      batches: arguments of each step, a new batch each, without end.
      turn: one turn of the user's loop, `turn(functions, *batch)`, where it is more than a call of
        the only function; the functions it gets are the optimised ones. The floats of what it
        returns are compared with plain TensorFlow's.
    """

    functions: Any
    batches: Iterator[tuple[Any, ...]]
    turn: Callable[..., Any] = _alone


@dataclass(frozen=True)
class Case:
    """A step of the suite.

    Attributes:
      name: of its module and its function.
      library: whose model or style it is.
      legacy_keras: whether `tf.keras` is tf-keras in its process, not Keras 3.
      build: makes its `Work`.
    """

    name: str
    library: str
    legacy_keras: bool
    build: Callable[[], Work]

    @functools.cached_property
    def code(self) -> str:
        """Fingerprint of the source that makes the case: its module without the other cases."""
        text = Path(str(inspect.getsourcefile(self.build))).read_text(encoding="utf-8")
        module = ast.parse(text)
        own = self.build.__name__
        kept = [one for one in module.body if not _is_case(one) or _name_of(one) == own]
        lines = "\n".join(map(ast.unparse, kept))
        return hashlib.sha256(lines.encode()).hexdigest()[:12]


def _is_case(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.FunctionDef):
        return False
    return any(ast.unparse(one).startswith("case(") for one in statement.decorator_list)


def _name_of(statement: ast.stmt) -> str:
    return str(getattr(statement, "name", ""))


_cases: dict[str, Case] = {}


def case(
    library: str, *, legacy_keras: bool = False, name: str | None = None
) -> Callable[[Callable[[], Work]], Callable[[], Work]]:
    """Makes a function a case.

    Args:
      library: whose model or style it is.
      legacy_keras: whether the case needs `tf.keras` to be tf-keras.
      name: within the module; default: the function's.

    Raises:
      ValueError: there is a case of that name.
    """

    def register(build: Callable[[], Work]) -> Callable[[], Work]:
        module = build.__module__.rpartition(".")[2]
        full = f"{module}.{name or build.__name__}"
        if full in _cases:
            raise ValueError(f"there are two cases {full}")
        _cases[full] = Case(full, library, legacy_keras, build)
        return build

    return register


def cases() -> dict[str, Case]:
    """All cases by their names, in the order of `MODULES`."""
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return dict(_cases)
