"""Names of a package that are imported when they are first used."""

import subprocess
import sys

import pytest

import understudy_base
from understudy_base.public_names import public_names


def test_import_reads_no_stub() -> None:
    """`ast` and `pathlib` read it: they take most of the time of a small import."""
    # -S: modules that find editable installations may import them, too
    code = f"import sys\nsys.path[:] = {sys.path}\nimport understudy_base\nprint(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"ast", "pathlib", "typing"}
    ours = {name for name in loaded if name.startswith("understudy_base.")}
    assert ours == {"understudy_base.public_names"}


def test_each_name_is_that_of_its_module() -> None:
    names = public_names(understudy_base.__file__)
    assert sorted(names) == dir(understudy_base)
    for name, module in names.items():
        if module != "understudy_base.progress":  # needs tqdm
            value = getattr(understudy_base, name)
            assert value is getattr(sys.modules[module], name)
            assert vars(understudy_base)[name] is value


def test_unknown_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="nowhere"):
        getattr(understudy_base, "nowhere")  # noqa: B009
