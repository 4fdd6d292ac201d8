"""Pages and figures.

page            the engine of all pages: blocks of plain data, one template
curves          charts as plain data: curves over steps, time or another quantity
"""
