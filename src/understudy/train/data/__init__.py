"""The data of a run.

run_data               all sources and the order over them
sources                one source, split into training and validation episodes
input_contract         the inputs of the robots of a run, measured on its training frames
prompts                metadata in the prompts, and the longest prompts
token_budget           check of `max_num_tokens` against the largest sample
make_loader            loader and order, with a rank's share of the host
fingerprint            digests of a dataset's files, compared on resume
incomplete_episodes    episodes with missing files
hub_files              files of a policy that its settings name by a hub id
"""
