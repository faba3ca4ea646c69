"""Text for training, and the files of data sets.

Other packages import from here:
  corpus     open_corpus, Corpus, Shard, Shards, Source, open_shards: `--data` to shards of text; CORPORA,
             absolute_data, default_shards, is_named, learned_text, parse_data, shard_files, shards_for, source_files,
             source_name, suggestions, text_here; for embedded worlds learned_world, world_folder, world_seed
  documents  documents: the texts in a file; by_size: texts in groups; text_files: the files of a folder
  bundle     fetch_bundle, URL: the files of CORE
  hub        repo_files, fetch, mirrored, HubFile, HubError, is_here, refusal, sha256: files by name
  lanes      Chunk, Deal, Lane, Mix: the order of the rows, for `nanochat.dataloader`
"""
