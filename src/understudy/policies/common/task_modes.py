"""Task modes of a sample: the streams that are inputs, and the streams that the network predicts.

    policy              actions and future are predicted    trains all losses
    forward_dynamics    the actions are given               trains the losses of the future only
    inverse_dynamics    the future is given                 trains the loss of the actions only

A given stream enters the network without noise, at flow time 0. A policy without a future has the first mode only.
No torch here, so that settings can be checked without it.
"""

FLOW, DYNAMICS, IMAGES = "flow", "dynamics", "images"
"""Loss terms: of the action chunk, of the states that follow, and of the images that follow."""

POLICY, FORWARD, INVERSE = "policy", "forward_dynamics", "inverse_dynamics"
MODES = (POLICY, FORWARD, INVERSE)
"""Modes; their positions are the numbers under `mode` in a batch."""

TRAINS = {POLICY: (FLOW, DYNAMICS, IMAGES), FORWARD: (DYNAMICS, IMAGES), INVERSE: (FLOW,)}
"""Loss terms that each mode trains, of those that a policy has; the streams of the others are given."""
