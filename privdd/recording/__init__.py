"""Recordings of federations that other people's code runs: written beside the training, read and audited afterwards."""
