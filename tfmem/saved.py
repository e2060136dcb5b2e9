"""SavedModels: their signatures as functions, and saving them rewritten."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfmem.api import Optimized, optimize
from tfmem.errors import Error

DEFAULT_SIGNATURE = "serving_default"


@dataclass(frozen=True)
class Saved:
    """A SavedModel that was loaded.

    Attributes:
      path: where it is.
      model: the loaded object, which holds variables and assets.
      signatures: its signatures, functions of keyword arguments.
    """

    path: str
    model: Any
    signatures: Mapping[str, Any]

    def signature(self, name: str) -> Any:
        """One of the signatures.

        Raises:
          tfmem.Error: there is none of that name.
        """
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise Error(f"{self.path} has no signature {name!r}; it has {known}")
        return self.signatures[name]


def load(path: str) -> Saved:
    """Loads a SavedModel.

    Raises:
      tfmem.Error: there is none, it cannot be read, or it has no signatures.
    """
    if not tf.saved_model.contains_saved_model(path):
        raise Error(f"{path} holds no SavedModel; pass the folder that has saved_model.pb in it")
    try:
        model = tf.saved_model.load(path)
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        raise Error(f"the SavedModel in {path} cannot be loaded: {error}") from error
    if not getattr(model, "signatures", None):
        raise Error(
            f"the SavedModel in {path} has no signatures, so there is nothing that a server would "
            "call; save it with tf.saved_model.save(model, path, signatures=...)"
        )
    return Saved(path, model, dict(model.signatures))


def inputs_of(signature: Any) -> dict[str, tf.TensorSpec]:
    """The inputs of a signature by name."""
    return dict(signature.structured_input_signature[1])


def example(
    signature: Any, batch: int | None, shapes: Mapping[str, Sequence[int]]
) -> dict[str, tf.Tensor]:
    """Arguments of the shapes that a signature is to be planned for.

    Args:
      signature: of a SavedModel.
      batch: stands for a first dimension that is open.
      shapes: of inputs by name; they go first.

    Raises:
      tfmem.Error: a dimension is open still, or a shape does not fit.
    """
    specs = inputs_of(signature)
    if unknown := sorted(shapes.keys() - specs.keys()):
        raise Error(f"there is no input {unknown[0]!r}; there are {', '.join(sorted(specs))}")
    return {name: _filled(name, spec, batch, shapes.get(name)) for name, spec in specs.items()}


def _filled(
    name: str, spec: tf.TensorSpec, batch: int | None, shape: Sequence[int] | None
) -> tf.Tensor:
    known = spec.shape
    if shape is None and known.rank is not None:
        dimensions = known.as_list()
        if dimensions and dimensions[0] is None:
            dimensions[0] = batch
        shape = dimensions
    if shape is None or None in shape:
        raise Error(
            f"input {name!r} has the shape {known}; say for which it is to be planned, with "
            f"--batch or --shape {name}=..."
        )
    if not known.is_compatible_with(shape):
        raise Error(f"--shape {name}={','.join(map(str, shape))} does not fit {known}")
    if spec.dtype == tf.string:
        return tf.fill(shape, "")
    return tf.zeros(shape, spec.dtype)


def positional(signature: Any) -> Any:
    """A signature as a tf.function of its inputs in order, open dimensions left open."""
    specs = inputs_of(signature)
    names = list(specs)

    @tf.function(input_signature=list(specs.values()))  # type: ignore[untyped-decorator]
    def serve(*inputs: tf.Tensor) -> Any:
        return signature(**dict(zip(names, inputs, strict=True)))

    return serve


def rewritten(
    saved: Saved, examples: Mapping[str, Mapping[str, tf.Tensor]], **options: Any
) -> dict[str, Optimized]:
    """The named signatures, planned.

    Args:
      saved: what was loaded.
      examples: for each signature the arguments it is planned for.
      **options: of `tfmem.optimize`.

    Raises:
      tfmem.Error: as of `Optimized.plan`.
    """
    made = {}
    for name, inputs in examples.items():
        optimized = optimize(positional(saved.signature(name)), **options)
        optimized.prepare(*inputs.values())
        made[name] = optimized
    return made


def save(
    saved: Saved,
    path: str,
    optimized: Mapping[str, Optimized],
    examples: Mapping[str, Mapping[str, tf.Tensor]],
) -> None:
    """Writes the SavedModel with some signatures rewritten; the others are as they were.

    What is written needs no tfmem to be loaded. The folder appears whole or not at all.

    Raises:
      tfmem.Error: it exists, or cannot be written.
    """
    target = Path(path)
    if target.exists():
        raise Error(f"{path} exists; name a folder that does not")
    served: dict[str, Any] = dict(saved.signatures)
    for name, one in optimized.items():
        concrete = one.get_concrete_function(*examples[name].values())
        served[name] = _served(concrete, saved.signature(name))
    part: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        whole = part / target.name  # nobody else may read what mkdtemp makes
        tf.saved_model.save(saved.model, str(whole), signatures=served)
        whole.rename(target)
    except (OSError, tf.errors.OpError) as error:
        raise Error(f"the SavedModel cannot be written to {path}: {error}") from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _served(concrete: Callable[..., Any], signature: Any) -> Any:
    """A rewritten function under the names of the signature it comes from."""
    named = [tf.TensorSpec(s.shape, s.dtype, name=n) for n, s in inputs_of(signature).items()]

    @tf.function(input_signature=named)  # type: ignore[untyped-decorator]
    def serve(*inputs: tf.Tensor) -> Any:
        return concrete(*inputs)

    return serve
