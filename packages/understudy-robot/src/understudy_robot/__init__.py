"""Serve a policy, play it in simulations, and look at what it did.

background_rollouts  rollouts during training, in another process
cli                  commands
contracts            contracts of policy folders of other tools
envs                 simulated environments
folder_contract      the contract of a policy folder of any tool
report               pages of rollouts, and why a policy does not grasp
rollout              closed-loop evaluation of a policy
serve                a policy behind a websocket, and its clients
testing              helpers of tests

The names that other distributions take are those of `__init__.pyi`; each is imported when it is
first used.
"""

from understudy_base import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
