"""What a recording of a conversation is made of: a request's form and key, replies, files."""
