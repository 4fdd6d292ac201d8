"""Pages and figures.

html            a self-contained page
charts          line charts of a run
sparklines      small inline curves and histograms
style           style of matplotlib figures
run             the report of a run
compare         several runs side by side
check_page      the page of `check`
view            a page to look through episodes, with its server
order           the comparison of `order explain`
bench_figure    the figure of `bench`
step_profile    tables and charts of `profile`
"""
