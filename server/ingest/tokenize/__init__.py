"""Text -> token ids, in worker processes.

recipe.py          what decides how documents become tokens
documents.py       rows and lines of a unit -> documents: text, pairs, chats, or tokens with labels
chat_targets.py    a chat -> its text, and which characters and tokens of it are training targets
chat_template.py   the template of a chat: a file, found and compiled
jinja_sandbox.py   what a template runs in
tokenizer.py       tokenizers: a tokenizer.json, or bytes
engine.py          by which package a tokenizer encodes: fastokens or tokenizers
splitting.py       splits long text where none of its tokens change
encoding.py        a unit of text -> its tokens
"""
