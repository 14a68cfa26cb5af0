"""Data: the literature's UCI sets, splits, scaling, and simulators; nothing of models."""

from reproduction.data.fetch import DownloadError
from reproduction.data.folders import data_folder
from reproduction.data.simulators import SIMULATORS, Simulator, simulate
from reproduction.data.splits import (
    Replicas,
    ScaledReplicas,
    Split,
    count_duplicates,
    random_splits,
    stack_replicas,
    standardize_replicas,
    train_validation_split,
)
from reproduction.data.uci import CATALOGUE, UCIDataset, load_uci

__all__ = [
    "CATALOGUE",
    "SIMULATORS",
    "DownloadError",
    "Replicas",
    "ScaledReplicas",
    "Simulator",
    "Split",
    "UCIDataset",
    "count_duplicates",
    "data_folder",
    "load_uci",
    "random_splits",
    "simulate",
    "stack_replicas",
    "standardize_replicas",
    "train_validation_split",
]
