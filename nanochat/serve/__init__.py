"""The chat server with OpenAI's interface, and the chat in the terminal.

app: LOOPBACK, Service, application, in_url, listen, open_engines and serve. requests: ServedModel.
cli: COMMANDS, TerminalChat, piped_messages, typed_messages.
"""
