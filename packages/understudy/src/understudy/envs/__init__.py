"""Simulated environments.

gymnasium_options  their settings
"""
