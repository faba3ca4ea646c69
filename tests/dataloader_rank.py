"""One of several ranks: takes batches, hands the joined state to a second loader, and prints a digest of it all."""

import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from corpora import corpus_of

from nanochat.dataloader import TextLoader
from nanochat.tokenizer import Tokenizer


def main(shards: Path, tokenizer_file: Path) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    corpus = corpus_of(sorted(shards.glob("*.parquet")))
    tokenizer = Tokenizer.load(tokenizer_file)
    digest, states = hashlib.sha256(), [None] * ranks
    for leg in range(2):
        with TextLoader(corpus, tokenizer, 8, 32, lanes=8, seed=3, rank=rank, world_size=ranks) as loader:
            if leg:
                loader.load_state_dict(loader.merge(states))
            for _ in range(10):
                inputs, targets = next(loader)
                mine = torch.cat([inputs, targets[:, -1:]], dim=1)
                shares = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_gather(shares, mine)
                digest.update(torch.stack(shares, dim=1).reshape(8, 33).numpy().tobytes())
            dist.all_gather_object(states, loader.state_dict())
    if rank == 0:
        print("digest", digest.hexdigest())
    dist.destroy_process_group()
