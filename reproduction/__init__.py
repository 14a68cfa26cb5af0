"""The paper's experiments: runs that can be resumed, and reports made from their records alone.

``python -m reproduction --help`` lists the experiments; ``reproduction/README.md`` describes them.
"""
