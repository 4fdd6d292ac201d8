"""The program `understudy`, one file per command.

versions     `understudy --version -v`
data         commands that write datasets, or look at them
runs         `understudy train`, `resume`, `validate`, `export` and `report`
plan         `understudy plan`
profile      `understudy profile`
audit        `understudy audit`
check_policy  `understudy check-policy`
bench        `understudy bench`
"""
