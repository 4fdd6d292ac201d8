"""The gRPC service of LeRobot's asynchronous inference, for its unchanged `robot_client`. Needs no LeRobot.

wire      messages in the encoding of protobuf
pickled   pickles as inert values; nothing of a pickle is imported or called
arrays    arrays and tensors of such values
messages  observations, policy instructions and chunks of actions
mapping   LeRobot's features and names, as inputs of the policy
robots    one robot: its newest observation, and the observations that are skipped
service   the service
"""
