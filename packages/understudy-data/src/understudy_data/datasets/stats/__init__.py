"""Statistics of columns, and the normalization that follows from them.

running            moments and quantiles of rows that arrive in parts, and of images from histograms
summary            one pass over the rows of a source: summaries that can be pooled, kept on disk
                   for the next run
recorded           statistics recorded with a dataset, for a comparison with its rows
norm_heads         norm heads, normalization statistics of each, pooled over sources, and outliers
far_values         normalized values of a size that sound figures do not give
stats_files        openpi's norm_stats.json, LeRobot's stats.json, and statistics recorded for each
                   episode
"""
