"""Images for batches.

clip_reader      one camera of one clip: each image is decoded once, forward, by one of a thread's
                 open decoders
decoded_cache    datasets whose images stay decoded, in memory or on disk
disk_cache       files of decoded images, shared by the processes of a host
source_facts     facts about datasets, from which memory is planned; those that are alike once
buffer_pool      image buffers, reused when no tensor refers to them
"""
