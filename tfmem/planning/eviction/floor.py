"""What a step takes at least, whatever leaves the device: below it no rehearsal is worth a try."""

from __future__ import annotations

from tfmem.planning.eviction.problem import EvictionProblem


def floor_bytes(problem: EvictionProblem, may_recompute: bool, may_swap: bool) -> int:
    """Bytes below which no rehearsal keeps its limit.

    At each position of the order there are what stays for the whole step, what is live and cannot
    leave, and what the node that is up reads, makes and holds while it runs.

    Args:
      problem: what would be rehearsed.
      may_recompute: whether values may be computed again.
      may_swap: whether values may be sent to the host.
    """
    form, order = problem.form, problem.order
    leaves = [_leaves(problem, one, may_recompute, may_swap) for one in range(len(problem.size))]
    change = [0] * (len(order) + 1)
    for position, node in enumerate(order):
        for storage in problem.outputs(node):
            if problem.storage[storage] != storage or leaves[storage]:
                continue
            uses, size = problem.uses[storage], problem.size[storage]
            last = len(order) if problem.stays[storage] else max([position, *uses[-1:]]) + 1
            change[position] += size
            change[last] -= size
    for storage in problem.given:
        if not leaves[storage] and problem.uses[storage]:
            change[0] += problem.size[storage]
            change[problem.uses[storage][-1] + 1] -= problem.size[storage]
    least = kept = problem.fixed_bytes
    for position, node in enumerate(order):
        kept += change[position]
        own = {*problem.storages_made[node], *problem.storages_read[node]}
        beside = {one for one in own if leaves[one]}
        more = sum(problem.size[one] for one in beside) + problem.scratch[node]
        taken = problem.size[form.taker[node]] if form.takes[node] else 0  # with what is read
        least = max(least, kept + more - taken)
    return least


def _leaves(problem: EvictionProblem, storage: int, may_recompute: bool, may_swap: bool) -> bool:
    """Whether a storage may leave between two uses."""
    if problem.stays[storage] or storage in problem.fixed:
        return False
    node = problem.form.producer[storage]
    if problem.is_sent[storage] or problem.on_host[node]:
        return True
    if may_recompute and problem.may_repeat[node]:
        return True
    return may_swap and storage not in problem.unsent
