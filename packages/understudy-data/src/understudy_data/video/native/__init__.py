"""Optional fast paths below PyAV's Python interface. The same images with and without them.

ffmpeg          FFmpeg's functions, through the libraries that PyAV loads, and the variable
                UNDERSTUDY_NATIVE
loops           decode and convert many frames in one call (`loops.c`)
swscale         RGB conversion straight into an array, and PyAV's own, equal in all its versions

Why it exists: PyAV releases and takes the interpreter's lock several times for each frame. With two
threads and small frames that is a fifth of the decoding time. PyAV also converts into its own
frame, which must then be copied.

How it is guarded: before first use the memory layout that `loops.c` assumes is verified on live
objects, through /proc/self/mem, so a wrong address raises and does not crash. Only versions of PyAV
that were tried are accepted. A checksum ties the compiled file to its source. Each pixel layout is
converted natively only after noise came out equal to PyAV's own conversion, to the bit. Where any
check fails, or nothing was compiled, the same work runs through PyAV.

When it can go: `loops` as soon as PyAV decodes a list of packets in one call without the lock, and
reuses frames; `swscale` as soon as PyAV converts into memory that the caller passes.
"""
