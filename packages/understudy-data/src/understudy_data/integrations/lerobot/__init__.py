"""A plugin of `lerobot-train` that reads batches with `us.Loader` in place of LeRobot's dataset and
sampler.

    lerobot-train ... --loader.discover_packages_path=understudy_data.integrations.lerobot

LeRobot imports the package that such a flag names. The import replaces four functions of its
training script in this process; nothing is written to disk. LeRobot's dataset still gives `meta`,
`features`, statistics and validation.

plugin    the replaced functions of the script
"""

from understudy_data.integrations.lerobot.plugin import install, training_script

if (script := training_script()) is not None:
    install(script)
