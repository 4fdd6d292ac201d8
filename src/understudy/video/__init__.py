"""Images of a video file by position. Knows no dataset and imports no torch.

A *frame* is a decoded `av.VideoFrame`; an *image* is an RGB array.

reader            the `VideoReader` and `VideoCursor` interfaces
open              `open_video`: a reader by backend name
pyav              the default backend
torchcodec        the optional backend
index             tables of a video: packets, display positions, GOPs
mp4               parse the sample tables of an mp4 file
packets           coded packets in decode order
decoder           from display positions to decoded frames
codec_pool        reuse of codec contexts, per thread
pixel_bytes       bytes of a decoded pixel, read from the decoder configuration
parameter_sets    parameter sets inside packets (SPS, PPS), which a decoder remembers
color             conversion to RGB planes, written straight into an array
reformat          PyAV's own conversion, made equal in all its versions
depth             depth images, without color conversion
resize            sizes of images, and area averaging to them in integer arithmetic
encode            encode images into mp4, and concatenate mp4 files without re-encoding
scheduling        keep encoders from making this process a real-time process
native            optional C loops and direct swscale calls
"""
