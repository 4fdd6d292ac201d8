"""Task modes: what a sample is a lesson in. Which of the streams is given, and which are to be found from noise.

    policy              what to do, and what comes of it     trains both losses
    forward_dynamics    the actions are given                trains the loss of the future alone
    inverse_dynamics    the future is given                  trains the loss of the actions alone

A stream that is given enters the network as it is, at flow time 0. A policy without a future learns the first alone.
No torch here, so that settings can be checked without it.
"""

FLOW, DYNAMICS = "flow", "dynamics"
"""Loss terms: of the action chunk, and of the states that follow."""

POLICY, FORWARD, INVERSE = "policy", "forward_dynamics", "inverse_dynamics"
MODES = (POLICY, FORWARD, INVERSE)
"""In the sequence of the numbers that a batch has under `mode`."""

TRAINS = {POLICY: (FLOW, DYNAMICS), FORWARD: (DYNAMICS,), INVERSE: (FLOW,)}
"""The loss terms that a mode trains, of those that a policy has; the stream of any other is given."""
