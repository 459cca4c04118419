"""Every method once more as a notebook would have it: torch.optim, autograd, loops; no channel, no ledger.

A bare loop takes (method's settings, shards, keys) and gives the end state under the stack's names, so
that the two can be compared tensor by tensor. It draws from the same named streams as the stack.
"""
