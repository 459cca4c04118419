"""Data: sources by name (``load``), partitions over clients (``Partition``) and shards (``make_shards``)."""

from privdd.data.dataset import DataNotFound, Dataset
from privdd.data.partition import Partition
from privdd.data.shards import make_shards
from privdd.data.sources import load

__all__ = ["DataNotFound", "Dataset", "Partition", "load", "make_shards"]
