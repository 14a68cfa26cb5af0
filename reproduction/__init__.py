"""Experiments: the paper's tables, run as resumable grids whose reports read records only."""
