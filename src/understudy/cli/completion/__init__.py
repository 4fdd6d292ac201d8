"""Completion of the command line in a shell: `understudy completion bash`.

completion  the command
tables      commands, flags and choices, from the settings classes
bash        the script for bash
zsh         the script for zsh
fish        the script for fish

tyro's shtab is no replacement: it has no script for fish, and no flags that depend on `--policy.type`. argcomplete
starts Python for each completion.
"""
