"""Simulated environments.

env          the environment protocol
registry     `open_env`: an environment by name
tabletop     a small table with three blocks
recall       a table that needs memory
metaworld    Meta-World MT10
libero       the suites of LIBERO
gymnasium    environments of Gymnasium
ray_camera   camera images by ray casting, without OpenGL
"""
