"""Layers with posteriors over their weights, behind one protocol."""
