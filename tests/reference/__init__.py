"""Every method once more as a notebook would have it: torch.optim, autograd, loops; no channel, no
ledger.

A reference loop takes (method's settings, shards, keys) and gives the end state under the stack's
names, so that the two can be compared tensor by tensor. It shares the random streams (``Keys``) and
the data types with
the stack and nothing else: networks, initial values, augmentation, batches and anchors are written
out here once more. ``pairs`` and ``compare`` set a loop against the stack.
"""
