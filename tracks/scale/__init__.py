"""Several machines: checks before a job, the energy of GPUs, and a simulation of the optimizer on many ranks.

Commands: `preflight`, which the main job runs before anything else.

The trunk finds these names through nanochat/registry.py; nothing else is to import:
- `energy`: METERS, with watch_gpu: a GPU's power and work while it trains.
"""
