"""`understudy profile` writes beside files of the user, never over them."""

from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import main


@pytest.mark.parametrize("name", ["profile.html", "profile.json"])
def test_files_of_the_user_are_not_replaced(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(5, 6)))
    target = tmp_path / name
    target.write_text("<html>a page of the user's")
    call = ["profile", "--data.root", str(tmp_path / "d"), "--output-dir", str(tmp_path)]
    assert [main(call), main([*call, "--overwrite"])] == [2, 2]
    assert str(target) in capsys.readouterr().err
    assert target.read_text() == "<html>a page of the user's"
