"""The program `understudy`, one file per command.

contract  `understudy contract`
demo      `understudy demo`
record    `understudy record`
replay    `understudy replay`
rollout   `understudy rollout`
serve     `understudy serve`
why       `understudy why`
"""
