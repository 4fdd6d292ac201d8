"""Commands that write datasets, or look at them.

record         `understudy record`
importing      `understudy import`
edit           `understudy edit` and `understudy segment`
copies         a copy of a dataset with new columns, for other commands
score          `understudy score`
publish        `understudy publish`
check          `understudy check`
check_several  `understudy check` of a glob or a list file, summed up
view           `understudy view`
ranges         `understudy ranges`
select         `understudy select`
order          `understudy order explain`
order_export   `understudy order export`
prepare        `understudy statistics`, `fast fit` and `tokenizer fit`
"""
