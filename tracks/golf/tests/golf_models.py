"""Small models of golf."""

from models import SMALL

from nanochat.models import config_fields

CONFIGS = {
    "golf": SMALL | config_fields("golf"),
    "golf-seed": SMALL | config_fields("golf-seed") | {"rope_dims": 8},  # of 16
    "golf with all tricks": SMALL
    | config_fields("golf,exclusive_last=2,query_gain=1.5,qk_eps=0.001,rope_dims=8,orthogonal=true,value_embeds=true"),
}
