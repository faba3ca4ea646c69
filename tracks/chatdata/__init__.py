"""Making chats to train on: augmented multiple choice."""
