"""A policy behind a websocket, and its clients. The clients need numpy, websockets and msgpack, no torch.

protocol      messages: msgpack with numpy arrays, as openpi sends them, and errors
dialects      forms of arrays in msgpack, and descriptions of unknown ones
requests      requests of robots, checked
metrics       counters and histograms, as Prometheus reads them
access        tokens and names of the host
session       one robot's connection: checks, history and noise
engine        requests of all robots: queue, passes, deadlines and metrics
arriving      messages that have arrived in part: limits of time and bytes
server        the server
client        `RemotePolicy`, the policy behind an address
async_chunks  `AsyncChunks`: the next chunk is predicted while the last one is executed
"""
