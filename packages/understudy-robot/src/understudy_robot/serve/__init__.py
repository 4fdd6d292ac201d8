"""A policy behind a websocket, and its clients. The clients need numpy, websockets and msgpack, no
torch.

requests      requests of robots, checked
values        descriptions of values that are no arrays of numbers
metrics       counters and histograms, as Prometheus reads them
session       one robot's connection: checks, history and noise
engine        requests of all robots: queue, passes, deadlines and metrics
arriving      messages that have arrived in part: limits of time and bytes
server        the server
config    settings of the policy server
"""
