"""Repositories on the Hugging Face hub: their ids, and folders fetched from or published to them.

upload     a folder as one commit of a repository
"""
