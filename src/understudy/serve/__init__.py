"""A policy behind a websocket, and its clients. The clients need numpy, websockets and msgpack, no torch.

coding            messages: msgpack with numpy arrays, as openpi sends them
protocol          requests, replies and errors
metrics           counters and histograms, as Prometheus reads them
session           one robot's connection: checks, history and noise
batcher           passes for several robots: queue and deadlines
access            who may connect: tokens, hosts, numbers of connections
engine            requests of all robots: deadlines, outcomes and metrics
connection_limit  a limit on connections, counted from their start
server            the server
warm_up           passes before the first robot
client            `RemotePolicy`, the policy behind an address
dial              one connection of a client
async_chunks      `AsyncChunks`: the next chunk is predicted while the last one is executed
past              observations that the client keeps for a policy with a history
"""
