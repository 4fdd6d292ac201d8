"""Statistics of columns, and the normalisation that follows from them.

running            moments and quantiles of rows that arrive in parts
image_statistics   the same for images, from histograms
summary            summaries of a column that can be pooled over sources
source             one pass over the rows of a source
cache              summaries on disk, for the next run
norm_heads         normalisation statistics per norm head, pooled over sources
head_name          the norm head of a source: robot and control mode
normalization      offset and spread from statistics
outliers           values so large that normalisation would flatten all others
external           openpi's norm_stats.json and LeRobot's stats.json
"""
