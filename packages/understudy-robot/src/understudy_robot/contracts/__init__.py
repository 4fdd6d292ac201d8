"""Contracts in use, and contracts of policy folders of other tools, with the contradictions inside
them. No torch.

lerobot    config.json, policy_preprocessor.json, policy_postprocessor.json, train_config.json
openpi     assets/ID/norm_stats.json, config.json or metadata.json
groot      experiment_cfg/metadata.json, config.json
tensors    names, shapes and digest of weights
in_motion  facts that two contracts leave open, and the power of the checks that decide them
trace      answered observations on disk, and their diagnosis
"""
