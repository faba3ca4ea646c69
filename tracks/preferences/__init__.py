"""Preferences: a model that learns from pairs of a chosen and a rejected answer (DPO), and a judge that makes pairs.

Commands: `train`, and `judge`, which lets a teacher compare the answers of two models.

The trunk finds these names through nanochat/registry.py; nothing else is to import:
- `pairs`: OPTIONS, with make_pairs: pairs from sampled answers, for scripts.rollouts.
"""
