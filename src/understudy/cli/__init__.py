"""The program `understudy`, one file per command.

main         errors and exit codes
commands     the table of commands
arguments    settings of a command from its words, or its help
help_texts   examples and general flags of the help
completion   `understudy completion`, and the answers that its scripts ask for
demo         `understudy demo`
record       `understudy record`
runs         `understudy train`, `resume`, `validate`, `rollout`, `export` and `report`
plan         `understudy plan`
profile      `understudy profile`
score        `understudy score`
check        `understudy check`
view         `understudy view`
importing    `understudy import`
edit         `understudy edit` and `understudy segment`
ranges       `understudy ranges`
order        `understudy order explain` and `understudy order export`
audit        `understudy audit`
hub          `understudy push` and `understudy pull`
prepare      `understudy fast fit` and `understudy tokenizer fit`
serve        `understudy serve`
replay       `understudy replay`
contract     `understudy contract`
why          `understudy why`
bench        `understudy bench`
versions     `understudy --version -v`
"""
