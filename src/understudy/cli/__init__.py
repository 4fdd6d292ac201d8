"""The program `understudy`, one file per command.

main         errors and exit codes
commands     the table of commands
console      texts of others on any console, and names of files in any locale
arguments    settings of a command from its words, or its help
help_texts   examples and general flags of the help
versions     `understudy --version -v`
demo         `understudy demo`
data         commands that write datasets, or look at them
runs         `understudy train`, `resume`, `validate`, `export` and `report`
rollout      `understudy rollout`
plan         `understudy plan`
profile      `understudy profile`
audit        `understudy audit`
bench        `understudy bench`
serve        `understudy serve`
replay       `understudy replay`
contract     `understudy contract`
why          `understudy why`
hub          `understudy push` and `understudy pull`
"""
