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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODULES = (
    "keras_models",
    "hugging_face",
    "hubs",
    "probability",
    "recommenders",
    "others",
    "pictures",
    "attention",
    "sciences",
    "styles",
    "gradients",
    "loops",
)
"""Modules of this package that have cases, in the order of the page."""

FITS = ("hub_fits", "embedding_fits", "application_fits")
"""Modules whose cases are those of `models.bench.families`, in the order of its page."""


def _alone(functions: tuple[Any, ...], *batch: Any) -> Any:
    (function,) = functions
    return function(*batch)


CORE = (
    *(f"keras_models.keras3.{name}" for name in ("mobilenet_v2", "mobilenet_v3", "densenet")),
    *(f"keras_models.tf_keras.{name}" for name in ("efficientnet", "mobilenet", "regnet")),
    *(f"hugging_face.{name}" for name in ("bert", "distilbert", "albert", "gpt2", "t5", "bart")),
    *(f"hugging_face.{name}" for name in ("xlnet", "vit", "whisper")),
    *(f"hubs.{name}" for name in ("bert_classifier", "llama_language_model", "resnet_classifier")),
    *("probability.variational_autoencoder", "probability.flipout"),
    *("probability.hamiltonian_monte_carlo", "probability.state_space_model"),
    "probability.sparse_gaussian_process",
    *(f"recommenders.keras3.{name}" for name in ("sgd", "adam", "rmsprop", "ftrl")),
    *("recommenders.tf_keras.adam", "recommenders.retrieval"),
    *("others.sonnet_vq_vae", "others.graph_attention", "others.deep_q_network"),
    *(f"pictures.{name}" for name in ("dcgan", "simclr", "wgan_gp", "two_steps_of_a_gan")),
    "pictures.u_net_by_fit",
    *(f"styles.{name}" for name in ("mlp_gelu", "assertions", "prints", "random_generator")),
    *("styles.averaged_weights", "styles.one_tensor_for_two_variables"),
    *("styles.several_signatures", "styles.methods_of_two_instances"),
    *(f"gradients.{name}" for name in ("meta_learning", "jacobian_penalty", "spectra")),
    *("gradients.own_recompute_grad", "gradients.half_precision"),
    *(f"loops.{name}_under_a_tape" for name in ("range", "cond", "switch", "map", "scan")),
    *("loops.microbatches_into_variables", "loops.iterator_inside", "loops.lstm"),
)
"""Some of each kind, for a run of half the time: `--only=core`."""


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
class Fit:
    """What a case trains by Keras's `fit`, with tfmem's callback.

    Attributes:
      model: compiled, of Keras 3 or tf-keras.
      data: a tf.data.Dataset of batches, without end.
    """

    model: Any
    data: Any


Build = Callable[[], Work | Fit]


@dataclass(frozen=True)
class Case:
    """A step of the suite.

    Attributes:
      name: of its module and its function.
      library: whose model or style it is.
      legacy_keras: whether `tf.keras` is tf-keras in its process, not Keras 3.
      build: makes its `Work` or `Fit`.
    """

    name: str
    library: str
    legacy_keras: bool
    build: Build

    @functools.cached_property
    def code(self) -> str:
        """Fingerprint of the source that makes the case, without the other cases."""
        path = Path(str(inspect.getsourcefile(self.build)))
        lines = "\n".join(source(path, self.build.__name__))
        return hashlib.sha256(lines.encode()).hexdigest()[:12]


def source(path: Path, *own: str) -> Iterator[str]:
    """Statements of a module, cases but `own` left out, and of those here that it imports.

    Of their cases those that are imported count.
    """
    for one in ast.parse(path.read_text(encoding="utf-8")).body:
        if not _is_case(one) or getattr(one, "name", "") in own:
            yield ast.unparse(one)
        if isinstance(one, ast.ImportFrom) and str(one.module).startswith(f"{__name__}."):
            imported = path.with_name(f"{str(one.module).rpartition('.')[2]}.py")
            yield from source(imported, *(alias.name for alias in one.names))


def _is_case(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.FunctionDef):
        return False
    return any(ast.unparse(one).startswith("case(") for one in statement.decorator_list)


_cases: dict[str, Case] = {}


def case(
    library: str, *, legacy_keras: bool = False, name: str | None = None
) -> Callable[[Build], Build]:
    """Makes a function a case.

    Args:
      library: whose model or style it is.
      legacy_keras: whether the case needs `tf.keras` to be tf-keras.
      name: within the module; default: the function's.

    Raises:
      ValueError: there is a case of that name.
    """

    def register(build: Build) -> Build:
        module = build.__module__.rpartition(".")[2]
        full = f"{module}.{name or build.__name__}"
        if full in _cases:
            raise ValueError(f"there are two cases {full}")
        _cases[full] = Case(full, library, legacy_keras, build)
        return build

    return register


def cases(modules: Sequence[str] = MODULES) -> dict[str, Case]:
    """All cases of some modules by their names, in the order of the modules."""
    for module in modules:
        importlib.import_module(f"{__name__}.{module}")
    found = {module: {} for module in modules}
    for name, one in _cases.items():
        found.get(name.partition(".")[0], {})[name] = one
    return {name: one for module in modules for name, one in found[module].items()}


def find(name: str) -> Case:
    """The case of a name; no other module than its own is imported.

    Raises:
      KeyError: there is none in its module.
    """
    return cases([name.partition(".")[0]])[name]
