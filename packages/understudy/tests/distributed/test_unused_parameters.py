"""The note on parameters that the loss does not reach; on meshes:
`packages/understudy/tests/train/test_world_size.py`."""

from fnmatch import filter as fitting

import pytest

from understudy.distributed.unused_parameters import freeze_patterns

TRAINED = [
    "text.embed.weight",
    "text.mix.weight",
    "text.mix.bias",
    "head.weight",
    "head.bias",
    "texture.weight",
]


@pytest.mark.parametrize(
    ("unread", "patterns"),
    [
        (["text.embed.weight", "text.mix.weight", "text.mix.bias"], ["text.*"]),
        (["text.mix.weight", "text.mix.bias", "head.bias"], ["text.mix.*", "head.bias"]),
        (["texture.weight"], ["texture.*"]),
        ([], []),
    ],
)
def test_freeze_patterns_fit_the_unread_parameters_alone(
    unread: list[str], patterns: list[str]
) -> None:
    assert freeze_patterns(unread, TRAINED) == patterns
    assert {name for pattern in patterns for name in fitting(TRAINED, pattern)} == set(unread)
