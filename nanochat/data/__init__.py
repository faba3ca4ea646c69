"""Text for training, and the files of data sets.

Other packages import from here:
  corpus     open_corpus, Corpus, Source: `--data` to shards of text; CORPORA, AUTO, check_data, hub_files, parse_data,
             shard_files, shards_for, source_files, source_name
  documents  Problems, documents, check_documents: files of text; TEXT
  hub        fetch, once_a_node, HubFile, HubError, Found, is_here, mirror, revision, sha256, world_dir: files by name
  lanes      used by `nanochat.dataloader` alone
"""
