"""Small recursive and looped models."""

from models import SMALL

RECURSIVE = {
    "recursive": {**SMALL, "depth": 2, "supervision": 3},
    "recursive passes": {
        **SMALL,
        "depth": 2,
        "supervision": 3,
        "loops": 1,
        "passes": 2,
        "detached": 1,
        "value_embeds": False,
    },
    "recursive scaled": {**SMALL, "depth": 2, "supervision": 2, "residual_power": 0.5},
    "recursive induction": {**SMALL, "depth": 2, "supervision": 2, "induction": True},
}
CONFIGS = RECURSIVE | {"looped": {**SMALL, "depth": 2, "sweeps": 3}}
