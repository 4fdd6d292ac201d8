"""Statistics of columns, and the normalization that follows from them.

running            moments and quantiles of rows that arrive in parts
image_statistics   the same for images, from histograms
summary            summaries of a column that can be pooled over sources
dataset_summaries  one pass over the rows of a source
summary_cache      summaries on disk, for the next run
norm_heads         norm heads, and normalization statistics of each, pooled over sources
normalization      offset and spread from statistics
outliers           values so large that normalization would flatten all others
episode_records    statistics recorded for each episode
stats_files        openpi's norm_stats.json and LeRobot's stats.json
"""
