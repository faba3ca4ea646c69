"""Models for other programs, and models of the public nanochat for this one.

The door for scripts:

- hf.Exported and hf.export: write a new folder with one of the writers, compare, and keep it only if all is equal
- hf.write_folder, hf.write_tokenizer, gguf.write_gguf: the writers
- tokenizers.read_tokenizer
- from_nanochat.read_checkpoint
- from_hf.read_folder and from_hf.save_imported
"""
