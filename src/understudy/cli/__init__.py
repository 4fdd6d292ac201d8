"""The program `understudy`, one file per command.

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
"""
