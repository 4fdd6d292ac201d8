"""Settings: dataclasses, files and checks. No torch.

files         read a settings file
schema        check, compare and write settings
values        values that a conversion would take for something else; ranges of episodes
declare       bounds and command-line markers of settings
on_resume     consequence of changing a setting on resume, declared next to it
help          flags, meanings, placeholders and rules of settings as text
flags         the command line as a second settings file
hooks         what a settings class may bring along for the modules above
dataset       settings of one dataset, and the selection of its frames
source_lists  globs and list files in place of the list of its sources
workers       processes of commands whose work is cut into parts
limits        largest values that one machine may be asked for
"""
