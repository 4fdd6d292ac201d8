"""What some policies have, and others have not: one Protocol for each capability.

No policy derives from these: a settings or policy class with the members of a Protocol has the
capability, and `isinstance` finds it. A type whose settings have a method of a Protocol without its
other members is refused. A caller asks for a capability by its name, or takes the answer of the
function next to it, which is that of a policy without the capability, too.

past     `SeesPast`: observations before the present
future   `ImaginesImages`: future images, which the network predicts
images   `ResizesImages`, `FitsImages`: another way of resizing, sizes that follow from recordings
texts    `ReadsTexts`: a tokenizer of instructions, and responses
returns  `PredictsReturns`: returns in place of actions
files    `NeedsFiles`: copies of files in the folder of the policy
folders  `ReadsFolders`, `RenamesWeights`: folders and names of weights of other tools
start    `StartsFromWeights`, `ChecksStart`, `FixesChunk`, `ChoosesNormalization`,
         `ChoosesAdapters`, `Deviates`: the start of a new run
"""

from typing import Any

from understudy.policies.capabilities.files import NeedsFiles
from understudy.policies.capabilities.folders import ReadsFolders, RenamesWeights
from understudy.policies.capabilities.future import ImaginesImages
from understudy.policies.capabilities.images import FitsImages, ResizesImages
from understudy.policies.capabilities.past import SeesPast
from understudy.policies.capabilities.returns import PredictsReturns
from understudy.policies.capabilities.start import (
    ChecksStart,
    ChoosesAdapters,
    ChoosesNormalization,
    Deviates,
    FixesChunk,
    StartsFromWeights,
)
from understudy.policies.capabilities.texts import ReadsTexts

CAPABILITIES: tuple[Any, ...] = (
    *(SeesPast, ImaginesImages, ResizesImages, FitsImages, ReadsTexts, PredictsReturns),
    *(NeedsFiles, StartsFromWeights, FixesChunk, ChoosesNormalization, ChoosesAdapters),
    *(Deviates, RenamesWeights, ReadsFolders, ChecksStart),
)


def check_capabilities(owner: type) -> None:
    """Raise TypeError where a class of settings has a method of a capability, and lacks another
    member: nothing would call the method.
    """
    for capability in CAPABILITIES:
        methods = [name for name in vars(capability) if not name.startswith("_")]
        found = [name for name in methods if hasattr(owner, name)]
        members = [*methods, *getattr(capability, "__annotations__", ())]
        lacking = [name for name in members if not hasattr(owner, name)]
        if found and lacking:
            raise TypeError(
                f"{owner.__name__} has {found[0]} of the capability {capability.__name__}, and "
                f"lacks {', '.join(lacking)}: add it, or rename {found[0]}"
            )
