"""The program `understudy`, one file per command.

main         the table of commands, errors and exit codes
arguments    parsing arguments and files into settings
demo         `understudy demo`
record       `understudy record`
train        `understudy train` and `understudy resume`
validate     `understudy validate`
plan         `understudy plan`
profile      `understudy profile`
rollout      `understudy rollout`
export       `understudy export`
report       `understudy report`
ranges       `understudy ranges`
order        `understudy order explain`
hub          `understudy push` and `understudy pull`
completion   `understudy completion`
dataset      commands that examine and mend datasets
prepare      commands that make files for a training
robot        commands for robots: `understudy serve`, `understudy replay`
bench        `understudy bench`
versions     `understudy --version -v`
"""
