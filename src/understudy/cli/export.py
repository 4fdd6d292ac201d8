"""`understudy export RUN`: a run's policy in one folder, as a robot loads it, or as a graph."""

from understudy.train.checkpoint import export as folders
from understudy.train.checkpoint.export import ExportConfig

__all__ = ["ExportConfig", "export"]


def export(config: ExportConfig) -> None:
    """Write the folder and print its path; raises as `folders.export` and `export_graph` do."""
    if config.is_graph():
        from understudy.train.checkpoint.export import export_graph

        export_graph(config)
    else:
        folders.export(config)
