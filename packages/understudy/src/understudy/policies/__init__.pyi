"""Public names of a policy's author, and their modules: the only list (docs/own_policies.md)."""

from understudy.policies.common.facts import PolicyConfig as PolicyConfig
from understudy.policies.common.normalizer import Normalizer as Normalizer
from understudy.policies.draws import Draws as Draws
from understudy.policies.draws import RandomSpec as RandomSpec
from understudy.policies.draws import generate_draws as generate_draws
from understudy.policies.losses import Loss as Loss
from understudy.policies.losses import masked_squared_error as masked_squared_error
from understudy.policies.losses import valid_elements as valid_elements
from understudy.policies.policy import Policy as Policy
from understudy.policies.registry import PolicyType as PolicyType
from understudy.policies.registry import policy_type as policy_type
from understudy.policies.settings import PolicySettings as PolicySettings
from understudy_base import ACTION as ACTION
from understudy_base import STATE as STATE
from understudy_base import TASK as TASK
