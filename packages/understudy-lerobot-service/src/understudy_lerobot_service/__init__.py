"""The gRPC service of LeRobot's asynchronous inference, for its unchanged `robot_client`. Needs no
LeRobot.

pickles   pickles as inert values, and their arrays; nothing of a pickle is imported or called
messages  observations, policy instructions and chunks of actions, in the encoding of protobuf
robots    one robot: its inputs by name, its newest observation, and the observations that are
          skipped
service   the service
"""
