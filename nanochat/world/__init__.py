"""The embedded world: an invented land, with its own text and tasks, for a machine without the internet.

A world has people, towns, rivers, animals, guilds and goods, with relations between them: `Kara lives in Nemiton`. Such
a fact becomes statements in documents (`texts`) and questions in conversations, tasks and a bundle of CORE tasks
(`chats`). `sums` adds arithmetic. Facts, pairs of numbers and words in the test split are never asked in training.
`facts` invents things and relations from `world.txt`; `writer` writes the files. One seed always gives the same bytes.

The door for other packages:

- VERSION, of the worlds that this code writes and reads
- writer.ensure_world and writer.write_world(folder, seed, size), writer.SIZES, writer.Size; on the command line
  `python -m nanochat.world`
- suggestions.suggestions(world), what a person may say to a model of it
- facts.World(seed, people), chats.core_bundle, chats.tables, writer.write_bundle (for tests)
- chats.Turns, chats.about_facts, chats.with_follow_up, chats.in_korean, chats.with_words: turns about one fact or word
"""

VERSION = 10  # raise with every change to the content or layout of worlds
