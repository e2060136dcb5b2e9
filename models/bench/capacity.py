"""The largest size of a model that trains under a hard limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from models.bench.experiment import Experiment, Row, load


def capacity(
    experiment: Experiment,
    modes: Sequence[str],
    run: Callable[[Experiment], Row],
    *,
    resolution: float,
    first_guess: float,
    enough: float = math.inf,
) -> list[Row]:
    """The largest size, by the model's own measure of growth, that trains in each mode.

    Searches by doubling and bisection.

    Args:
      experiment: the model, its hard limit, and where the search begins.
      modes: one after the other.
      run: trains an experiment in a process of its own.
      resolution: the search stops when the answer is known to this part.
      first_guess: where the search of a later mode begins, over the first mode's answer.
      enough: where it ends, likewise: no larger sizes are tried.
    """
    model = load(experiment.model)
    growth, rounded = model.GROWTH, getattr(model, "rounded", int)
    best: list[Row] = []
    guess = getattr(experiment.make_config(), growth)
    most = math.inf

    for mode in modes:

        def probe(value: int, mode: str = mode) -> Row:
            changes = {**experiment.changes, growth: rounded(value)}
            return run(experiment.in_mode(mode, changes, starts_on_host=True))

        found = largest(probe, guess, resolution, most)
        if found is None:
            best.append(Row(experiment.model, mode, experiment.limit, outcome="nothing trains"))
            continue
        best.append(found)
        if mode == modes[0]:
            guess = math.ceil(found.config[growth] * first_guess)
            most = found.config[growth] * enough
    return best


def largest(
    probe: Callable[[int], Row], guess: int, resolution: float, most: float = math.inf
) -> Row | None:
    """The row of the largest value that trains; None if 1 does not.

    Doubles (or halves) from the guess until one value trains and one does not, then bisects until
    the distance between them is at most `resolution` of the smaller, or 1. Ends at the first value
    from `most` on that trains.
    """
    best: Row | None = None
    low, high = 0, 0
    value = guess
    while not high or high - low > max(1, low * resolution):
        row = probe(value)
        if row.has_trained:
            low, best = value, row
            if low >= most:
                return best
        else:
            high = value
        if high == 1:
            return None
        value = (low + high) // 2 if low and high else max(1, value * 2 if low else value // 2)
    return best
