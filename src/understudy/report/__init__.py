"""Pages and figures.

page            the engine of all pages: blocks of plain data, one template
curves          charts as plain data: curves over steps, time or another quantity
style           style of matplotlib figures
run             the report of a run
compare         several runs side by side
check_page      the page of `check`
view            a page to look through episodes, with its server
order           the comparison of `order explain`
bench_figure    the figure of `bench`
step_profile    tables and charts of `profile`
"""
