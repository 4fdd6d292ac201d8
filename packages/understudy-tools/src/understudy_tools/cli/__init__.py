"""Commands that write datasets, or look at them.

check          `understudy check`
check_several  `understudy check` of a glob or a list file, summed up
copies         a copy of a dataset with new columns, for other commands
edit           `understudy edit` and `understudy segment`
hub            `understudy push` and `understudy pull`
importing      `understudy import`
order          `understudy order explain`
publish        `understudy publish`
ranges         `understudy ranges`
select         `understudy select`
view           `understudy view`
"""
