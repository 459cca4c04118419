"""Faults that the self-test plants in healthy runs, to see whether an audit finds them. Nothing
else uses them."""
