"""Pages and figures.

check_page  the page of `check`
view        a page to look through episodes, with its server
"""
