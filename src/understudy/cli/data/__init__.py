"""Commands that write datasets, or look at them.

score          `understudy score`
order_export   `understudy order export`
prepare        `understudy statistics`, `fast fit` and `tokenizer fit`
"""
