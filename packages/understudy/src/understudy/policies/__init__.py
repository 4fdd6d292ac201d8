"""Networks: tensors in, per-sample losses or actions out.

The names that a policy of your own needs are public here, `from understudy.policies import Policy`:
those of `__init__.pyi`, in docs/api.md. A release that changes one incompatibly raises the major
version; before 1.0 the minor.

settings             `PolicySettings`, what a run writes of every policy
capabilities         what only some policies have, a Protocol each
registry             types of policies by name
own_code             types in a Python file: imported only where this user named them by hand
policy               `Policy`, the base class of all of them
draws                random numbers of a policy, keyed by position
losses               per-sample losses, and predicted consequences of actions
batch                checks of the batch, and its past frames and states
common               facts of a run (`PolicyConfig`), layers, normalization, flow matching,
                     encoders and towers
flow                 the small flow-matching policy
pi05                 pi0.5 and pi0
inference            `load_policy`: a saved policy that acts on observations
graphs               passes captured as CUDA graphs, and the functions that kernels of others
                     replace
acting               its parts: passes for several robots, bounds, reactions to other inputs than
                     those of training
observation_history  past observations of an episode, as training read them
policy_folder        a policy as a folder: weights, config, normalization, and files such as a
                     tokenizer
model_card           README.md of that folder
weight_files         tensors in safetensors files, read row by row, and networks without memory for
                     large tensors
"""

from understudy_base import lazy_names

__getattr__, _list_names = lazy_names(__name__, __file__)

__all__ = _list_names()
