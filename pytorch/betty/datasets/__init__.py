"""Data sets: made on the spot, downloaded, or brought along as a file."""

from betty.datasets.dataset import Dataset
from betty.datasets.graph import csc, graph_fingerprint
from betty.datasets.load import DATASET_NAMES, load_dataset

__all__ = ["DATASET_NAMES", "Dataset", "csc", "graph_fingerprint", "load_dataset"]
