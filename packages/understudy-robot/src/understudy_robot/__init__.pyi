"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

from understudy_robot.serve.engine import GRACE_S as GRACE_S
from understudy_robot.serve.engine import Engine as Engine
from understudy_robot.serve.requests import Request as Request
from understudy_robot.serve.session import Session as Session
