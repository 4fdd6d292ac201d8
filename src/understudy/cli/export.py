"""`understudy export RUN`: a run's policy in one folder, as a robot loads it."""

from understudy.train.checkpoint.export import ExportConfig, export

__all__ = ["ExportConfig", "export"]
