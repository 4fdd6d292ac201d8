"""Errors, whole files, progress and credentials, on the standard library alone.

atomic             files and folders replaced in one step
batch_keys         keys of a batch that are independent of the dataset and of the policy
booleans           refusal of booleans in place of numbers
bytesize           sizes in bytes, as text
cores              number of processor cores, and the share of one process
counts             counts in messages: "1 episode", "1,200 episodes"
credentials        credentials in addresses: removed for display, remembered for opening files
dataset_address    addresses of datasets with a view, `PATH#NAME`
entry_points       objects that installed packages offer by entry points of our groups,
                   `understudy.NAME`
episode_ids        ids of episodes as a user writes them: `0-7`, `12`, `3,5,9`
errors             errors that users see, and addresses of pages for their messages
lru                a cache that drops its least recently used values once they outgrow a budget
malloc             reuse of freed images' memory
optional_packages  optional packages, and the error for one that is not installed
progress           progress of long work on stderr
public_names       public names of a package: those that the stub next to its `__init__.py` imports
records            types of values by name, and such values for JSON
temporary          temporary folders that the next process removes if theirs was killed
testing            helpers of tests

The names that other distributions take are those of `__init__.pyi`; each is imported when it is
first used.
"""

from understudy_base.public_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
