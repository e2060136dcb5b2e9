"""A SavedModel, and what a server without tfmem makes of it, in a process of its own."""

from __future__ import annotations

import sys
from typing import Any

BRANCHES, WIDTH, BATCH = 12, 2048, 256


def write(path: str) -> None:
    """Saves a model of many wide branches, each of which is needed again when all are there."""
    import tensorflow as tf

    class Wide(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = [
                tf.Variable(tf.random.stateless_normal([64, WIDTH], [i, 1]) * 0.1)
                for i in range(BRANCHES)
            ]

        @tf.function(input_signature=[tf.TensorSpec([None, 64], name="x")])
        def serve(self, x: Any) -> Any:
            branches = [tf.nn.gelu(x @ w) for w in self.weights]
            scale = tf.add_n([tf.reduce_mean(tf.abs(branch)) for branch in branches])
            sums = [tf.reduce_sum(branch / scale, axis=1) for branch in branches]
            return {"scores": tf.stack(sums, axis=1)}

        @tf.function(input_signature=[tf.TensorSpec([None, 64], name="x")])
        def half(self, x: Any) -> Any:
            return {"half": 0.5 * x}

    model = Wide()
    tf.saved_model.save(
        model, path, signatures={"serving_default": model.serve, "half": model.half}
    )


def serve(path: str) -> dict[str, Any]:
    """Outputs and peak of a SavedModel where tfmem cannot be imported."""
    sys.modules["tfmem"] = None  # type: ignore[assignment]
    import tensorflow as tf

    model = tf.saved_model.load(path)
    x = tf.random.stateless_normal([BATCH, 64], [3, 4])
    function = model.signatures["serving_default"]
    function(x=x)
    tf.config.experimental.reset_memory_stats("CPU:0")
    scores = function(x=x)["scores"]
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return {
        "scores": scores.numpy().tolist(),
        "smaller": function(x=x[:7])["scores"].shape.as_list(),
        "half": float(tf.reduce_max(model.signatures["half"](x=x)["half"] - 0.5 * x)),
        "peak": peak,
    }
