"""Code of a user's own policy: one file and its local modules, imported only where this user named
it by hand.

sources   the file and each local module that it imports, with one digest over them
copies    copies of both beside the weights that they describe
trusted   the user's list of code that was named by hand
importer  modules from the bytes that were compared, and local modules that the sources do not show
types     the object that `FILE.py:NAME` names: pinned, imported, refused
"""
