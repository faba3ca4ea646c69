"""The chat server with OpenAI's interface, and the chat in the terminal.

app: Access, Service, is_loopback, listen, open_engines and serve start the server. requests: Limits, ServedModel.
worker: Pool. cli: Chat, piped_messages, typed_messages.
"""
