"""Policies of LeRobot behind our `Policy`: trained, validated and played like ours. Needs the
package `lerobot`.

settings   settings and configs, whose `config` has the fields of LeRobot's own config classes;
           training presets
adapter    normalized images, and given numbers in place of those that a network draws itself
folder     LeRobot's folders: read, and described for the export
act        `LerobotAct`
diffusion  `LerobotDiffusion`
smolvla    `LerobotSmolvla`
"""
