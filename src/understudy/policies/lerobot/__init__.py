"""Policies of LeRobot behind our `Policy`: trained, validated and played like ours. Needs the package `lerobot`.

settings   settings and configs, whose `config` has the fields of LeRobot's own config classes
adapter    normalized images, and given numbers in place of those that a network draws itself
preset     training preset of LeRobot's config classes, as settings of a run
folder     LeRobot's folders: read, and described for the export
act        `LerobotAct`
diffusion  `LerobotDiffusion`
smolvla    `LerobotSmolvla`
"""
