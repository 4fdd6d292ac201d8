"""The command `understudy`, one file per command.

main         the table of commands, errors and exit codes
arguments    arguments and files into settings
demo         `understudy demo`
record       `understudy record`
train        `understudy train`, `resume` and `validate`
profile      `understudy profile`
rollout      `understudy rollout`
inspect      `understudy inspect`
ranges       `understudy ranges`
order        `understudy order explain`
bench        `understudy bench`
versions     `understudy --version -v`
"""
