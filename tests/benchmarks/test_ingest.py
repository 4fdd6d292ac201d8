"""lab/benchmarks/ingest.py: rows with the promised figures."""

import json

import pytest

pytest.importorskip("rosbags", reason="needs the extra `import`")

import ingest


@pytest.mark.long
def test_rows_have_the_promised_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert ingest.main(["--json", "--frames", "12", "--rounds", "1", "--size", "64", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["source"] for row in found["rows"]] == [
        "mcap-jpeg",
        "mcap-raw",
        "sqlite3-jpeg",
        "hdf5.h5",
        "buffer.zarr",
    ]
    for row in found["rows"]:
        for name in ("read", "decode", "encode", "import"):
            seconds = row["mb"] / row[f"{name}_mb_per_s"]
            assert seconds == pytest.approx(row["frames"] / row[f"{name}_frames_per_s"])
        assert row["import_over_encode"] > 0.5
    assert found["conditions"]["cores"] >= 1
