"""Sealed canaries: records by committed coins in a federation that is not a simulation, and a bound
anybody can recompute."""
