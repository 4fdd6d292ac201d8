"""Commands that write datasets, or look at them.

order_export   `understudy order export`
prepare        `understudy statistics`, `fast fit` and `tokenizer fit`
"""
