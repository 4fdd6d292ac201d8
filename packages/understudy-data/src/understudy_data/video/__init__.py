"""Images of a video file by position. Knows no dataset and imports no torch.

A *frame* is a decoded `av.VideoFrame`; an *image* is an RGB array.

reader            `open_video`, and the readers and cursors of both backends
index             tables of a video: packets, display positions, GOPs
mp4               parse the sample tables of an mp4 file
packets           coded packets in decode order
decoder           from display positions to decoded frames
codec_pool        reuse of codec contexts, per thread
parameter_sets    parameter sets inside packets (SPS, PPS), which a decoder remembers
orientation       EXIF orientation of images and quarter turns of frames: the one rule
shown             what a container says of how its video is shown
color             conversion to RGB planes, written straight into an array, and area averaging to
                  another size
depth             depth images, without color conversion
encode            encode images into mp4, and concatenate mp4 files without re-encoding
quality           PSNR and SSIM of encoded images
native            optional C loops and direct swscale calls
"""
