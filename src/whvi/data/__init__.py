"""Data: the literature's UCI sets, splits, scaling, tables from files, and simulators.

Knows nothing of models. Optional packages (pooch, pandas, scipy) are imported when first needed.
"""

from whvi.data.catalogue import CATALOGUE, UCIEntry, catalogue_entry
from whvi.data.designs import latin_hypercube_design, sobol_design, uniform_design
from whvi.data.fetch import DownloadError
from whvi.data.scaling import ScaledReplicas, Standardizer, standardize_replicas
from whvi.data.simulators import SIMULATORS, Simulator, simulate
from whvi.data.splits import (
    Replicas,
    Split,
    count_duplicates,
    k_folds,
    random_splits,
    stack_replicas,
    train_validation_split,
)
from whvi.data.tables import numeric_columns, read_table
from whvi.data.uci import UCIDataset, load_uci

__all__ = [
    "CATALOGUE",
    "SIMULATORS",
    "DownloadError",
    "Replicas",
    "ScaledReplicas",
    "Simulator",
    "Split",
    "Standardizer",
    "UCIDataset",
    "UCIEntry",
    "catalogue_entry",
    "count_duplicates",
    "k_folds",
    "latin_hypercube_design",
    "load_uci",
    "numeric_columns",
    "random_splits",
    "read_table",
    "simulate",
    "sobol_design",
    "stack_replicas",
    "standardize_replicas",
    "train_validation_split",
    "uniform_design",
]
