"""Limits of what one recording may ask of memory. Messages name them; bounds.py, values.py and
timeline.py use them.
"""

MAX_CHUNK = 1 << 30
"""Decoded bytes of the chunks of a row of an array."""
MAX_MESSAGES = 1 << 28
"""Decoded bytes of a chunk of an MCAP or ROS 1 file, and of a message."""
MAX_VALUES = 1 << 20
"""Values of a message that its definition declares beside sequences; an array of numbers is one."""
MAX_ROW = 1 << 28
"""Bytes of a row of an array."""
MAX_ROWS = 1 << 20
"""Rows of an episode of an array: 5.8 hours at 50 rows per second."""
MAX_FRAMES = 1 << 22
"""Frames of an episode: 23 hours at 50 frames per second."""
MAX_PIXELS = 1 << 25
"""Pixels of an image: 8192 x 4096."""
MAX_METADATA = 1 << 24
"""Bytes of a file of metadata, of a record outside of a chunk that is not a message, and of one
message definition.
"""
