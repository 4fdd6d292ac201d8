"""Installed packages with entry points, as an installer writes them."""

from pathlib import Path


def install(folder: Path, distribution: str, text: str, code: str = "") -> None:
    """Write the metadata of a distribution "NAME-VERSION", and its module `toys_NAME`.

    Args:
        folder: on `sys.path`.
        distribution: name and version.
        text: of entry_points.txt.
        code: of the module.
    """
    name, _, version = distribution.partition("-")
    info = folder / f"{distribution}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(text)
    (folder / f"toys_{name}.py").write_text(code)
