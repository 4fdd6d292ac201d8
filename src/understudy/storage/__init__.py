"""Bytes of files by position, wherever the files are. Knows no dataset.

byte_source         interface of a file that is read by byte position, and the local implementation
dataset_root        a dataset root (a folder or any fsspec URL) and the files below it
remote_options      settings for remote reading: cache folder, cache size, retries
remote_source       remote files, read through the host's cache; each byte is fetched once per host
web_store           backends for https://, s3:// and the Hugging Face hub
remote_store        the backend interface, and the backend for everything else that fsspec opens
http_client         one range request, and the checks of its answer
timeouts            deadlines for connection, response header and body
retry               backoff, deadlines and Retry-After
prefetch_threads    threads that fetch ranges before they are needed
disk_cache          the on-disk cache of byte ranges, shared by all processes of a host
cache_budget        disk budget of that cache: reservation and eviction
cached_spans        names and checksums of cached byte ranges
locks               file locks between the processes of a host
mapped_tables       large tables in memory-mapped files, one copy per host
"""
