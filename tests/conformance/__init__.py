"""Small mechanisms with the faults that real code has had, each with a twin that keeps what it
states."""
