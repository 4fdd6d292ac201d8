"""Statistics of columns, and the normalisation that follows from them.

running          one pass over values: min, max, mean, std, quantiles (used by the writer)
summary          the same for pooling over sources, in bounded memory (used by training)
source           one pass over the rows of a source
cache            those results on disk, for the next run
norm_heads       normalisation statistics per norm head, pooled over sources
head_name        the norm head of a source: robot and control mode
normalization    offset and spread from statistics
outliers         values so large that normalisation would flatten all others
external         openpi's norm_stats.json and LeRobot's stats.json
"""
