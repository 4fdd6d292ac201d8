"""Policies of LeRobot behind our `Policy`: trained, validated and played like ours. Needs the package `lerobot`.

settings          settings that all of them share
adapter           images, and LeRobot's configs
preset            training preset of LeRobot's config classes, as settings of a run
backbone          weights of ImageNet for a ResNet
given_noise       normal numbers in place of those that a network draws itself
folder            LeRobot's folders: read, and described for the export
act_config        settings and configs of `lerobot-act`
act               `LerobotAct`
diffusion_config  settings and configs of `lerobot-diffusion`
diffusion         `LerobotDiffusion`
smolvla_config    settings and configs of `lerobot-smolvla`
smolvla_start     settings that follow from the weights a run of `lerobot-smolvla` starts from
smolvla           `LerobotSmolvla`
"""
