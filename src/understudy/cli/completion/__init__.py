"""Completion of the command line in a shell: `understudy completion bash`.

completion  the command
tables      commands, flags and choices, from the settings classes
bash        the script for bash
zsh         the script for zsh
fish        the script for fish
"""
