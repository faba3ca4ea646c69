"""The chat server with OpenAI's interface, and the chat in the terminal.

app: Access, Service, is_loopback, listen, open_engines and serve. requests: RequestLimits, ServedModel. worker: Pool.
cli: TerminalChat, piped_messages, typed_messages.
"""
