"""Bytes of files by position, wherever the files are. Knows no dataset.

byte_source         interface of a file that is read by byte position, and the local implementation
dataset_root        a dataset root (a folder or any fsspec URL) and the files below it
dataset_version     one version of a dataset: marks that are asked again when a further file is
                    opened; publications
parquet_faults      causes of failures of Arrow, and the remedy of each
remote_options      settings for remote reading: cache folder, cache size, retries
remote_source       remote files, read and prefetched through the host's cache; each byte is fetched
                    once per host
remote_store        backends for https://, s3://, the Hugging Face hub, and everything else that
                    fsspec opens
remote_folder       a folder of a bucket to write into
cancel              cancellation of the work of a thread whose caller has gone
http_client         one range request with its deadlines, and the checks of its answer
disk_cache          the on-disk cache of byte ranges, shared by all processes of a host
cache_budget        disk budget of that cache: reservation and eviction, and names of cached spans
locks               file locks between the processes of a host
mapped_tables       large tables in memory-mapped files, one copy per host
table_file          the form of these files: Arrow IPC with checksums
"""
