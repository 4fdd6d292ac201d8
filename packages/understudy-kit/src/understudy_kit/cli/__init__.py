"""The program `understudy`, one file per command.

main         errors and exit codes
commands     the table of commands
console      texts of others on any console, and names of files in any locale
arguments    settings of a command from its words, or its help
help_texts   examples and general flags of the help
"""
