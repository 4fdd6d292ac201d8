"""What tests of runs begin with: a dataset, a mesh of one process, a tokenizer."""

from understudy.testing.run_fixtures import data, mesh, tokenizer

__all__ = ["data", "mesh", "tokenizer"]
