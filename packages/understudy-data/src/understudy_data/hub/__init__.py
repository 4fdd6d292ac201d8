"""Repositories on the Hugging Face hub: their ids, and folders fetched from or published to them.

ids        `HubId`: the kind, name and revision of a repository
download   a repository as a folder: in the cache of huggingface_hub, or in a separate folder
upload     a folder as one commit of a repository
cards      README.md as a program wrote it, or as a user edited it
"""
