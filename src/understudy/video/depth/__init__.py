"""Depth images: one channel of distances, without color conversion.

codes        12-bit codes of LeRobot's depth videos, and their distances
pixels       `Pixels`: channels and dtype of a camera's images, color or depth
converter    from decoded frames to depth images
"""
