"""Data: the literature's UCI sets, splits, scaling, tables from files, and simulators.

Knows nothing of models. Optional packages (pooch, pandas, scipy) are imported when first needed.
"""

from reproduction.data.catalogue import CATALOGUE, UCIEntry, catalogue_entry
from reproduction.data.designs import latin_hypercube_design, sobol_design, uniform_design
from reproduction.data.fetch import DownloadError
from reproduction.data.simulators import SIMULATORS, Simulator, simulate
from reproduction.data.splits import (
    Replicas,
    ScaledReplicas,
    Split,
    count_duplicates,
    k_folds,
    random_splits,
    stack_replicas,
    standardize_replicas,
    train_validation_split,
)
from reproduction.data.uci import UCIDataset, load_uci

__all__ = [
    "CATALOGUE",
    "SIMULATORS",
    "DownloadError",
    "Replicas",
    "ScaledReplicas",
    "Simulator",
    "Split",
    "UCIDataset",
    "UCIEntry",
    "catalogue_entry",
    "count_duplicates",
    "k_folds",
    "latin_hypercube_design",
    "load_uci",
    "random_splits",
    "simulate",
    "sobol_design",
    "stack_replicas",
    "standardize_replicas",
    "train_validation_split",
    "uniform_design",
]
