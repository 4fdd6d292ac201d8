"""Processes of a run and how a network is spread over them.

mesh                     the device mesh, agreement between ranks, FSDP2
ranks                    agreement between ranks, also of other programs
keepalive                wait for rank 0 as long as it works
fill_weights             parameters filled row by row, whole or sharded
activation_checkpoint    activation checkpointing per block
entered_blocks           agreement on the sharded blocks that a forward pass enters
unused_parameters        parameters that a loss does not reach
torch_release            features that an older torch lacks
"""
