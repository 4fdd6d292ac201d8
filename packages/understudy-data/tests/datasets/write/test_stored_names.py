"""Names in stored files that outlive releases and moves of modules."""

from understudy_data.datasets.write.dataset_files import MARK


def test_the_mark_of_recordings_is_that_of_all_versions() -> None:
    """Only recordings with it are repaired and continued, also those of earlier versions."""
    assert MARK == {b"understudy": b"recorded by understudy.data.EpisodeWriter"}
