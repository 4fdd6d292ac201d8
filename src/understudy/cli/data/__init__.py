"""Commands that write datasets, or look at them.

record         `understudy record`
score          `understudy score`
order_export   `understudy order export`
prepare        `understudy statistics`, `fast fit` and `tokenizer fit`
"""
