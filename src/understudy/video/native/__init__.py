"""Optional fast paths below PyAV's Python interface. The same images with and without them.

switch     the environment variable UNDERSTUDY_NATIVE
ffmpeg     FFmpeg's functions, through the libraries that PyAV loads
loops      decode and convert many images in one call (`loops.c`)
swscale    colour conversion straight into an array
"""
