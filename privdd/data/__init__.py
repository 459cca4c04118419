"""Data: sources by name (``load_dataset``), partitions over clients (``Partition``) and shards
(``make_shards``)."""

from privdd.core.validation import DataNotFound
from privdd.data.dataset import Dataset
from privdd.data.partition import Partition, make_shards
from privdd.data.sources import load_dataset

__all__ = ["DataNotFound", "Dataset", "Partition", "load_dataset", "make_shards"]
