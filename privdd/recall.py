"""What an audited client kept in a real federation, worked out again from its own data.

A deployment's server learns that a client remembers something, never what. Whoever audits that client
holds its records, and the run folder holds what the server had sent it: the same steps give the same memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from privdd.core import Shard, State
from privdd.federation import Plan, Progress
from privdd.worlds import memory_after

MARK = "remembered"


def mark() -> State:
    """In the place of a memory that stays with its client."""
    return {MARK: torch.ones(())}


def marked(memory: State) -> bool:
    """Whether a memory is kept elsewhere."""
    return MARK in memory


def recalled(plan: Plan, progress: Progress, shard: Shard) -> Progress:
    """``progress`` with the audited client's memory before each of its kept rounds and after the last.

    shard: what the client trained on. Unchanged where nothing is marked. A method whose clients remember
    has all of the client's rounds kept, from the first. Raises ValueError where local work drew noise of the
    operating system: another draw of it gives another memory.
    """
    if not marked(progress.memories.get(plan.victim, {})):
        return progress
    drawn = sorted(set(plan.mechanisms) & set(plan.method.queries))  # others act on what is sent, after local work
    if drawn and plan.noise_source == "os":
        raise ValueError(
            f"privacy.noise_source=os: what client {plan.victim} remembers depends on noise of {', '.join(drawn)} that "
            "cannot be drawn again; allowed is seed where a deployment with client memory is audited"
        )
    memory: State = {}
    snapshots = dict(progress.snapshots)
    for t in sorted(snapshots):
        snapshots[t] = replace(snapshots[t], memory=memory)
        memory = {name: value.detach() for name, value in memory_after(plan, snapshots[t], memory, shard).items()}
    return replace(progress, snapshots=snapshots, memories={**progress.memories, plan.victim: memory})
