"""Features of a robot that LeRobot drives, as inputs of the policy."""

from understudy_base.testing.refusals import refused
from understudy_client import MessageError
from understudy_lerobot_service.messages import Instructions
from understudy_lerobot_service.robots import read_inputs

IMAGE = {"dtype": "video", "shape": (8, 8, 3), "names": ["height", "width", "channels"]}
FEATURES = {"observation.images.a": IMAGE, "observation.images.b": IMAGE}


def test_features_may_not_share_a_name() -> None:
    renamed = {"observation.images.a": "observation.images.c"}
    found = read_inputs(Instructions("flow", "run", FEATURES, 8, renamed))
    assert found.images == {"observation.images.c": "a", "observation.images.b": "b"}
    with refused("observation.images.b", kind=MessageError):
        read_inputs(
            Instructions(
                "flow", "run", FEATURES, 8, {"observation.images.a": "observation.images.b"}
            )
        )
