"""Bindings of the compiled kernel, each with its plain composition in torch beside it."""
