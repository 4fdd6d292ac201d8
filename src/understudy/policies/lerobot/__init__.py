"""Policies of LeRobot behind our `Policy`: trained, validated and played like ours. Needs the package `lerobot`.

config       settings and configs of `lerobot-act`
act          `LerobotAct`
given_noise  normal numbers in place of those that a network draws itself
folder       LeRobot's folders: read, and described for the export
"""
